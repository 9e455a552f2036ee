#!/usr/bin/env bash
# ResNet-18 from an ONNX file to a checked and timed module.tar. Run it with `make demo`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/demo
mkdir -p "$out"

# Echo each command before it runs, so that what is on the screen can be typed again.
step() {
    printf '\n$ %s\n' "$*"
    "$@"
}

step python -m benchmarks.zoo resnet18 -o "$out/resnet18.onnx"
step mlc compile "$out/resnet18.onnx" --target x86 -o "$out/resnet18.tar"
step mlc run "$out/resnet18.tar" --verify onnxruntime --model "$out/resnet18.onnx"
step mlc run "$out/resnet18.tar" --bench
