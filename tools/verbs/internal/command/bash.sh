# bash completion for verbs
_verbs() {
	local line=${COMP_LINE:0:COMP_POINT} words out text cut name about
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	out=$("${words[0]}" __complete "${words[@]:1}" 2>/dev/null) || return
	text=${words[-1]}
	[[ $text == --*=* ]] && text=${text#*=}
	[[ $text == *=* ]] && cut=${text%=*}= # bash takes = for the end of a word
	COMPREPLY=()
	while IFS=$'\t' read -r name about; do
		case $name in
		:0) compopt -o default ;;
		:*) ;;
		"$text"*)
			name=${name#"$cut"}
			[[ $name == *= ]] && compopt -o nospace
			# 63 is ?: the completions are listed, and none is inserted.
			[[ $COMP_TYPE == 63 && -n $about ]] && name="$name  ($about)"
			COMPREPLY+=("$name")
			;;
		esac
	done <<<"$out"
	[[ ${#COMPREPLY[@]} == 1 ]] && COMPREPLY=("${COMPREPLY[0]%%  (*}")
}
complete -F _verbs verbs
