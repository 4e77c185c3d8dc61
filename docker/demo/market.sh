#!/bin/sh
# Puts each institution's samples of a synthetic market into its own volume; in earnest each prepares its own.
set -eu
last=$((${FCFL_SILOS:-20} - 1))
missing=""
for number in $(seq 0 $last); do
  [ -e "/silos/silo-$(printf %02d "$number")/samples/manifest.json" ] || missing=yes
done
[ -n "$missing" ] || exit 0
fcfl data synth --out /tmp/market --silos "${FCFL_SILOS:-20}" --tickers "${FCFL_TICKERS:-320}"
for number in $(seq 0 $last); do
  name=silo-$(printf %02d "$number")
  rm -rf "/silos/$name/samples.new" "/silos/$name/samples"
  cp -r "/tmp/market/$name" "/silos/$name/samples.new"
  mv "/silos/$name/samples.new" "/silos/$name/samples"
done
