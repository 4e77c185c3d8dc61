#!/bin/sh
# The operator of the demonstration: makes the federation, admits every silo, sends the start-up kits.
# /mail/NAME stands for both the post and the telephone to an institution; in earnest those are two ways.
set -eu
umask 077
project=/federation/project
last=$((${FCFL_SILOS:-20} - 1))
each() { for number in $(seq 0 $last); do "$@" "silo-$(printf %02d "$number")"; done; }

expect() {
  [ -e "/mail/$1/code" ] && return
  fcfl provision add-silo "$1" --organisation "Bank ${1#silo-}" --project $project > /tmp/expected
  sed -n 's/^ *authority *//p' /tmp/expected > "/mail/$1/authority"
  sed -n 's/^ *enrolment code *//p' /tmp/expected > "/mail/$1/code.new"
  mv "/mail/$1/code.new" "/mail/$1/code"
}

admit() {
  until [ -e "/mail/$1/request" ]; do sleep 1; done
  fcfl provision sign "/mail/$1/request" --project $project
  install -m 0644 "$project/silos/$1.pub" "/nodes/$1.pub"
}

make_kit() { fcfl provision export "$1" --project $project --out "/mail/$1/kit.new"; }
send_kit() { mv "/mail/$1/kit.new" "/mail/$1/kit"; }

if ! [ -e $project/federation.toml ]; then
  fcfl provision init $project --name demonstration --server proxy --port 8443 --server-name superlink
fi
fcfl provision renew --project $project
install -m 0644 $project/ca/ca.crt /tls/ca.crt
install -m 0600 $project/servers/proxy/current/server.key /tls/server.key
install -m 0644 $project/servers/proxy/current/server.crt /tls/server.new
mv /tls/server.new /tls/server.crt
each expect
each admit
each make_kit
# Together: a node that starts before the conductor has registered it is refused, and starts again.
touch /nodes/complete
each send_kit
