#!/usr/bin/env bash
# Check the golden digests (tests/data/bits.json) and the golden compressed files on aarch64, under emulation:
# `make bits-aarch64`.
#
# An arm64 Debian is unpacked under build/aarch64, for its Python, its headers and its C library; the Cython half is
# compiled for it by Debian's cross compiler, and run with NumPy's wheel under qemu.  On Debian:
#     apt install debootstrap qemu-user-static gcc-aarch64-linux-gnu
# debootstrap wants to be root.  Later runs keep what is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
work=$PWD/build/aarch64
root=$work/debian
for tool in debootstrap qemu-aarch64-static aarch64-linux-gnu-gcc dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "$tool was not found: apt install debootstrap qemu-user-static gcc-aarch64-linux-gnu"; exit 1; }
done

if [ ! -e "$root/complete" ]; then
    echo "== unpacking an arm64 Debian =="
    rm -rf "$root"
    mkdir -p "$root"
    # --foreign: nothing in it has to be run, so neither chroot nor binfmt_misc is needed.
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,libpython3-dev bookworm "$root" >"$work/debootstrap.log"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    touch "$root/complete"
fi

if [ ! -d "$work/site/numpy" ]; then
    echo "== NumPy's wheel =="
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 --dest "$work" numpy
    "$python" -m zipfile -e "$work"/numpy-*.whl "$work/site"
fi

echo "== compiling the kernels =="
rm -rf "$work/lib"
mkdir "$work/lib"
cp -r gpt2fast "$work/lib"
find "$work/lib" -name '*.so' -delete # this machine's
CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" \
    CFLAGS="-O2 -I$root/usr/include/python3.11 -I$root/usr/include -idirafter $root/usr/include/aarch64-linux-gnu" \
    "$python" setup.py --quiet build_ext --build-lib "$work/lib" --build-temp "$work/objects"
for module in "$work"/lib/gpt2fast/kernels/*.so; do mv "$module" "${module%%.*}.so"; done # the suffix is this machine's

emulated() { qemu-aarch64-static -cpu max -L "$root" -E PYTHONPATH="$work/lib:$work/site" "$root/usr/bin/python3.11" "$@"; }
echo "== compressed files =="
emulated tests/tools/compressed_bits.py --emulated
for level in baseline aarch64-dotprod; do
    echo "== the digests, $level =="
    GPT2FAST_CPU=$level emulated tests/tools/bits.py --check
done
