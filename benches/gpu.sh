#!/bin/sh
# What a machine with NVIDIA GPUs does: devices and paths, who computes products and why, speeds of memory and products,
# copy bandwidths beside the links' limits, decode and prefill speed of the models that are at hand (prefill with cuBLAS and
# without it), and the host's time for a token.
#
# usage: benches/gpu.sh [MODEL.gguf ...]     (default: what is in models/, and the embedded model)
#
# The figures are for docs/perf.md: take them on an idle machine, with the card's name. Exit status: 0 measured, or there
# is no GPU (the reason is printed); 1 something failed.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet
lm=target/release/loadmaster

devices=$($lm devices)
case "$devices" in
*CUDA*"compute capability"*) ;;
*)
    echo "skipped: $(printf '%s\n' "$devices" | head -n 1)"
    exit 0
    ;;
esac

echo "== devices and paths"
printf '%s\n' "$devices"

# Devices by their place in the driver's order, as --device takes them.
count=$($lm devices --json | grep -o '"name":"CUDA[0-9]*"' | wc -l)
all=""
i=0
while [ "$i" -lt "$count" ]; do
    all="$all --device cuda:$i"
    i=$((i + 1))
done

echo "== links as the hardware has them"
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,pcie.link.gen.max,pcie.link.width.max,clocks.max.memory --format=csv
    nvidia-smi topo -m
else
    echo "nvidia-smi is not there: the limits of the links are not known"
fi

echo "== reads, products and copies, measured"
# shellcheck disable=SC2086
$lm probe $all -o "${TMPDIR:-/tmp}/loadmaster-gpu.toml"
echo "== the same, products by our own kernels"
# shellcheck disable=SC2086
LOADMASTER_CUBLAS=off $lm probe $all -o "${TMPDIR:-/tmp}/loadmaster-gpu-own.toml"

# One line: tokens a second in prefill and decode.
measure() {
    found=$($lm run "$@" --json -p "$prompt" -n 128 --temp 0)
    found=$(printf '%s\n' "$found" | grep -Eo '"(prompt|decode)_tokens_per_s":[0-9.]+')
    printf '%s\n' "$found" | tr '\n' ' '
    echo
}

prompt=$(i=0; while [ $i -lt 64 ]; do printf 'Alice was beginning to get very tired. '; i=$((i + 1)); done)
if [ $# -eq 0 ]; then
    set -- models/*.gguf
fi
for model in "$@"; do
    [ -e "$model" ] || continue
    echo "== $model, one GPU"
    measure "$model" --device cuda:0 --ctx 4096
    echo "== $model, one GPU, products by our own kernels (prefill above: by cuBLAS, if it is listed under products)"
    (
        export LOADMASTER_CUBLAS=off
        measure "$model" --device cuda:0 --ctx 4096
    )
    echo "== $model, one GPU, flash attention"
    measure "$model" --device cuda:0 --ctx 4096 --flash-attn on
    if [ "$count" -gt 1 ]; then
        echo "== $model, $count GPUs"
        # shellcheck disable=SC2086
        measure "$model" $all --ctx 4096
    fi
done

echo "== host's time for a token: the embedded model, whose kernels take next to nothing"
prompt="Alice was beginning"
measure --device cuda:0 --ctx 256
