#!/bin/sh
# Waits until every silo is enrolled and online, conducts the run, leaves its report in ./runs.
set -eu
until [ -e /nodes/complete ]; do sleep 1; done
silos=${FCFL_SILOS:-20}
cohort=$(((silos + 1) / 2))
exec fcfl run conduct "/runs/${FCFL_RUN:-compose}" --superlink superlink:8000 --root-certificates /tls/ca.crt \
  --nodes /nodes --set "silos=$silos" --set "rounds=${FCFL_ROUNDS:-15}" --set "participation.cohort=$cohort"
