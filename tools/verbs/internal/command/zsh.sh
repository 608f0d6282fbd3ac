#compdef verbs
# zsh completion for verbs
_verbs() {
	local -a lines all options
	local line name
	lines=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	[[ $words[CURRENT] == --*=* ]] && compset -P 1 '*='
	for line in "${(@)lines[1,-2]}"; do
		name=${${line%%$'\t'*}//:/\\:}
		[[ $name == *= ]] && options=(-S '')
		[[ $line == *$'\t'* ]] && name+=":${line#*$'\t'}"
		all+=("$name")
	done
	(( $#all )) && _describe verbs all "${(@)options}"
	[[ $lines[-1] == :0 ]] && _files
	return 0
}
if [[ ${funcstack[1]} == _verbs ]]; then
	_verbs # a file of fpath
else
	compdef _verbs verbs
fi
