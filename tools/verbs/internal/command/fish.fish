# fish completion for verbs
function __verbs_complete
	set -l words (commandline -opc)
	set -l text (commandline -ct)
	for line in ($words[1] __complete $words[2..] "$text" 2>/dev/null)
		switch $line
			case :0
				__fish_complete_path "$text"
			case ':*'
			case '*'
				# A completion replaces the word, and so the name of a flag before =, too.
				string match -qr -- '^(?<flag>--[^=]*=)' "$text"; and set line $flag$line
				echo $line
		end
	end
end
complete -c verbs -e
complete -c verbs -f -a '(__verbs_complete)'
