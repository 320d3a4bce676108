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
# Megatron-Energon and the storage client that it imports: by hand, too, because s3fs would take botocore back to
# a release that boto3, which LitData brings, can't use. Local shards need neither.
energon="megatron-energon==7.4.1 multi-storage-client==1.3.1"
energon_needs="braceexpand click filetype mfusepy rapidyaml jsonschema<5 lark opentelemetry-api<2 prettytable<4 \
  pyroute2<1 tzdata<2026 wcmatch<11 xattr<2 python-dateutil pyyaml jmespath"
# img2dataset's writer alone: its downloader and resizer bring OpenCV, pandas, wandb and an older webdataset.
img2dataset="img2dataset==1.47.0"
img2dataset_needs="pyarrow fsspec"
common="torch numpy<2.2 pillow"

stamp=$venv/.installed
wanted="$peers $mosaic $mosaic_needs $energon $energon_needs $img2dataset $img2dataset_needs $common $(cat "$root/constraints.txt")"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
mkdir -p "$here/work"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
echo "Installing the peers into $venv (about 1.5 GB, some minutes the first time)" >&2
set -f
# shellcheck disable=SC2086 # the lists above are words
"$venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" $common $peers \
  $mosaic_needs $energon_needs $img2dataset_needs
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --no-deps $mosaic $energon $img2dataset
printf '%s' "$wanted" > "$stamp"
