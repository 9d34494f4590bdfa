PYTHON="${PYTHON:-python3}"
jobs=()
cancel() { if (( ${#jobs[@]} )); then scancel "${jobs[@]}"; fi; }
trap cancel EXIT
trap 'exit 130' INT TERM

# wait_for JOB PORT: the member's first node, once it answers
wait_for() {
  local host=''
  while true; do
    case "$(squeue --noheader --jobs "$1" --format %T 2>/dev/null)" in
      RUNNING)
        host="$(squeue --noheader --jobs "$1" --format %B)"
        host="$(scontrol show node "$host" --oneliner | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')"
        if curl --silent --fail --max-time 5 "http://$host:$2/health" >/dev/null; then
          echo "$host"
          return
        fi ;;
      PENDING|CONFIGURING) ;;
      *) echo "job $1 is not running any more" >&2; return 1 ;;
    esac
    sleep 5
  done
}
