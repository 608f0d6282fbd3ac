# PowerShell completion for verbs
Register-ArgumentCompleter -Native -CommandName verbs -ScriptBlock {
	param($word, $ast, $cursor)
	$words = @($ast.CommandElements | Where-Object { $_.Extent.StartOffset -lt $cursor } | ForEach-Object { "$_" })
	if ($word -eq '') { $words += '' }
	$flag = if ($word -match '^--[^=]*=') { $Matches[0] } else { '' }
	& $words[0] __complete @($words | Select-Object -Skip 1) 2>$null | Where-Object { $_ -notlike ':*' } | ForEach-Object {
		$name, $about = $_ -split "`t", 2
		$name = $flag + $name
		if ($name -like "$word*") {
			[System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterValue', $(if ($about) { $about } else { $name }))
		}
	}
}
