#!/bin/sh
# Takes the pictures of docs/editors/images anew, from the new user's journeys in a real VS Code. Run by `make screenshots`.
set -eu

cd "$(dirname "$0")/.."
node --test --test-reporter=spec tests/editors_vscode/journeys.test.mjs
for picture in 01-prompt=first-click 05-hot-spots=hot-spots 06-review=review 07-diff=diff 12-ptx=ptx; do
    cp "build/editor-artifacts/journeys-${picture%=*}.png" "docs/editors/images/${picture#*=}.png"
done
