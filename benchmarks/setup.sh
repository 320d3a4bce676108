#!/bin/sh
# The peers that we measure against, in a virtual environment of their own: benchmarks/work/peers.
# Safe to run again; does nothing where everything is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
venv=$here/work/peers
# One line a release that was measured; change one and the environment is brought up to date.
peers="webdataset==1.0.2 wids==0.1.11 itar==0.4.2 litdata==0.2.76"
mosaic="mosaicml-streaming==0.13.0"
# What MosaicML Streaming imports on the paths that we time. Installed by hand, because its own list also
# brings torchvision and the clients of five clouds, of which local shards need none.
mosaic_needs="transformers>=4.36,<5 xxhash<4 zstd brotli python-snappy catalogue filelock psutil tqdm"
common="torch numpy<2.2 pillow"

stamp=$venv/.installed
wanted="$peers $mosaic $mosaic_needs $common $(cat "$root/constraints.txt")"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
mkdir -p "$here/work"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "Installing the peers into $venv (about 1.3 GB, some minutes the first time)" >&2
set -f
# shellcheck disable=SC2086 # the lists above are words
"$venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" $common $peers $mosaic_needs
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --no-deps $mosaic
printf '%s' "$wanted" > "$stamp"
