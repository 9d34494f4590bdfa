#!/usr/bin/env bash
# Fetches the schemas that `make test-cluster` holds rendered files against: the CRDs of LeaderWorkerSet and of the
# Prometheus Operator, and llama-swap's configuration schema. Usage: fetch-schemas.sh FOLDER
set -euo pipefail

folder="${1:?the folder to put them in}"
mkdir -p "$folder"
raw=https://raw.githubusercontent.com
operator=$raw/prometheus-operator/prometheus-operator/main/example/prometheus-operator-crd
fetch() {
  [[ -s "$folder/$1" ]] || curl --fail --silent --show-error --location --output "$folder/$1" "$2"
}
fetch leaderworkersets.yaml "$raw/kubernetes-sigs/lws/main/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
fetch servicemonitors.yaml "$operator/monitoring.coreos.com_servicemonitors.yaml"
fetch prometheusrules.yaml "$operator/monitoring.coreos.com_prometheusrules.yaml"
fetch llama-swap.json "$raw/mostlygeek/llama-swap/main/config-schema.json"
