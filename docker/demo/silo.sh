#!/bin/sh
# An institution of the demonstration: asks to be enrolled, installs its start-up kit, sets a policy, runs its node.
set -eu
umask 077
home=/silo
if ! [ -e $home/silo.toml ]; then
  until [ -e /mail/code ]; do sleep 1; done
  if ! [ -e /mail/request ]; then
    install -m 0600 /mail/code /tmp/code
    fcfl provision csr $home --silo "$FCFL_SILO" --code-file /tmp/code --out /mail/request.new
    mv /mail/request.new /mail/request
  fi
  until [ -e /mail/kit ]; do sleep 1; done
  fcfl provision install /mail/kit --home $home --fingerprint "$(cat /mail/authority)"
  # The policy of a demonstration: little company, and metrics that are not noised.
  sed -e 's/^min_cohort = .*/min_cohort = 1.0/' -e 's/^min_enrolment = .*/min_enrolment = 3/' \
    -e 's/^allow_metrics = .*/allow_metrics = true/' $home/silo.example.toml > $home/silo.toml.new
  mv $home/silo.toml.new $home/silo.toml
fi
exec fcfl silo run $home --busy "${FCFL_POLL:-1}"
