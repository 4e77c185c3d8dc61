#!/bin/sh
# Starts the SuperLink once the operator has left its certificate.
set -eu
until [ -s /tls/server.crt ]; do sleep 1; done
exec flower-superlink --host 0.0.0.0 --port 8000 --isolation process --database /state/superlink.db \
  --enable-supernode-auth --ssl-ca-certfile /tls/ca.crt --ssl-certfile /tls/server.crt --ssl-keyfile /tls/server.key
