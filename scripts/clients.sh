#!/usr/bin/env bash
# The agents that moebox drives, into a folder: Claude Code and opencode, and Harbor with podman-compose where there is a
# Python 3.12. Usage: clients.sh FOLDER
set -euo pipefail

folder="${1:?the folder to install them in}"
mkdir -p "$folder/bin"
folder="$(cd "$folder" && pwd)"
modules="$folder/node_modules"
if [[ ! -e "$folder/bin/claude" ]]; then
  echo "installing Claude Code into $folder"
  npm install --prefix "$folder" --no-fund --no-audit --loglevel=error @anthropic-ai/claude-code@2.1.197
  ln -sf "$modules/.bin/claude" "$folder/bin/claude"
fi
if [[ ! -e "$folder/bin/opencode" ]]; then
  case "$(uname -m)" in
    aarch64) package=opencode-linux-arm64 ;;
    *) package=opencode-linux-x64 ;;
  esac
  echo "installing opencode into $folder"
  npm install --prefix "$folder" --no-fund --no-audit --loglevel=error "$package"
  ln -sf "$modules/$package/bin/opencode" "$folder/bin/opencode"
fi
python="${PYTHON312:-$(command -v python3.12 || true)}"
if [[ -n "$python" && ! -e "$folder/bin/harbor" ]]; then
  echo "installing Harbor into $folder"
  "$python" -m venv "$folder/harbor"
  "$folder/harbor/bin/python" -m pip install --quiet --disable-pip-version-check 'harbor==0.24.0' 'podman-compose==1.6.0'
  ln -sf "$folder/harbor/bin/harbor" "$folder/bin/harbor"
  ln -sf "$folder/harbor/bin/podman-compose" "$folder/bin/podman-compose"
fi
# Harbor's tasks run in python:3.12-slim. No registry is asked for it: a Debian with Python and tmux goes by its name.
if [[ -e "$folder/bin/harbor" && ! -e "$folder/rootfs.tar" ]] && command -v debootstrap > /dev/null; then
  echo "making an image for Harbor's tasks in $folder"
  debootstrap --variant=minbase --include=python3,tmux,procps,asciinema bookworm "$folder/rootfs" > "$folder/rootfs.log"
  rm -rf "$folder"/rootfs/var/cache/apt/archives/*.deb "$folder"/rootfs/usr/share/{doc,locale}
  tar -C "$folder/rootfs" -cf "$folder/rootfs.tar" .
  rm -rf "$folder/rootfs"
fi
