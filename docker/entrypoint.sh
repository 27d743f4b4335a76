#!/bin/sh
# Starts the command given to `docker run IMAGE ...` (default: serve) with the image's settings.
# `exec` makes the server process 1, so that it receives SIGTERM and drains.
set -eu

if [ "${1:-serve}" = serve ]; then
  [ "$#" -eq 0 ] || shift
  exec engram-server serve --config "${ENGRAM_CONFIG_FILE:-/etc/engram/config.yaml}" "$@"
fi
exec engram-server "$@"
