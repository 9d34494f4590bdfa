#!/usr/bin/env bash
# Fetches the schemas that `make test-cluster` holds rendered files against: the CRDs of LeaderWorkerSet and of the
# Prometheus Operator, and llama-swap's configuration schema. Usage: fetch-schemas.sh FOLDER
# Where GitHub cannot be reached, put the files there by hand, under the names below.
set -euo pipefail

folder="${1:?the folder to put them in}"
mkdir -p "$folder"
raw=${SCHEMAS_FROM:-https://raw.githubusercontent.com}
operator=prometheus-operator/prometheus-operator/main/example/prometheus-operator-crd

# A file is there whole or not at all: an interrupted download must not pass for a schema.
fetch() {
  [[ ! -s "$folder/$1" ]] || return 0
  if ! curl --fail --silent --show-error --location --max-time 120 --output "$folder/$1.part" "$raw/$2"; then
    rm -f "$folder/$1.part"
    echo "fetch-schemas.sh: cannot fetch $raw/$2; put it into $folder/$1 by hand" >&2
    exit 3
  fi
  mv "$folder/$1.part" "$folder/$1"
}
fetch leaderworkersets.yaml kubernetes-sigs/lws/main/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml
fetch servicemonitors.yaml "$operator/monitoring.coreos.com_servicemonitors.yaml"
fetch prometheusrules.yaml "$operator/monitoring.coreos.com_prometheusrules.yaml"
fetch llama-swap.json mostlygeek/llama-swap/main/config-schema.json
