#!/usr/bin/env bash
# Objects compiled for a wide instruction set must not define inline functions of others: of several copies the linker
# keeps one, perhaps the AVX-512 one, and a plain x86-64 caller then dies of an illegal instruction. Allowed are weak
# symbols inside nibble::avx2, avx512 and avx512_bf16, which no other object defines.
# usage: kernel_symbols.sh NM OBJECT...
set -euo pipefail
nm=$1
shift
[[ $# -gt 0 ]] || { echo "no object given" >&2; exit 64; }

# W and V: weak; u: unique. DW.ref.* is a pointer of the exception tables, not code.
symbols=$("$nm" --defined-only --format=posix -A "$@")  # fails where an object is missing
shared=$(awk '$3 ~ /^[WVu]$/ {print $1, $2}' <<<"$symbols" |
  grep -vE ' (_ZGVZ?|_ZT[VISH]|_Z)Z*N[KVrRO]*6nibble(4avx2|6avx512|11avx512_bf16)' | grep -v ' DW\.ref\.' || true)
if [[ -n $shared ]]; then
  echo "weak symbols that other objects may share, compiled for a wider instruction set:" >&2
  c++filt <<<"$shared" | sed 's/^/  /' >&2
  echo "  hint: write the function in namespace nibble::NIBBLE_TARGET, or mark it static inline" >&2
  exit 1
fi
echo "$# objects, no shared inline function"
