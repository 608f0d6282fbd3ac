#!/bin/sh
# Builds every fuzz test of every module for OSS-Fuzz. compile_native_go_fuzzer_v2 comes with its image.
set -eu
find . -name '*_test.go' -not -path '*/testdata/*' -not -path '*/.*/*' | sort | xargs grep -Ho '^func Fuzz[A-Za-z0-9_]*' | while IFS=: read -r file func; do
	name=${func#func } dir=${file%/*} module=${file%/*}
	until test -f "$module/go.mod"; do module=${module%/*}; done
	path=$(sed -n 's/^module //p' "$module/go.mod")${dir#"$module"}
	target=$(echo "${dir#./}" | tr / _)_$name
	(cd "$module" && compile_native_go_fuzzer_v2 "$path" "$name" "$target")
done
