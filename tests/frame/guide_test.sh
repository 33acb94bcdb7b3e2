#!/usr/bin/env bash
# Runs every command of a page of docs/ as it stands there: the lines of its ```sh blocks, in order, in an empty folder.
# usage: guide_test.sh NIBBLE PAGE
set -euo pipefail
nibble=$(realpath "$1") page=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/work"
ln -s "$nibble" "$folder/bin/nibble"
PATH=$folder/bin:$PATH
cd "$folder/work"
ran=0
while IFS= read -r line; do
  echo "+ $line"
  bash -c "$line" </dev/null
  ran=$((ran + 1))
done < <(awk '/^```sh$/ { inside = 1; next } /^```$/ { inside = 0 } inside && NF' "$page")
((ran >= 10)) || { echo "only $ran commands found in $page"; exit 1; }
echo "$ran commands ran"
