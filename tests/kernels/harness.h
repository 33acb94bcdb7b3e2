// Runs one kernel on operands given as numbers, without a graph, and compares bits. Every operand lies at an address
// that is aligned to its element only, every buffer ends in a guard, and what a kernel has to write is NaN before.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/kernel.h"
#include "kernels/ref/lists.h"
#include "numerics/bf16.h"

namespace nibble::testing {

/// An operand: a type and its elements, which a double holds exactly whatever the type is.
struct Array {
  Type type;
  std::vector<double> values;
};

inline Type f32(std::initializer_list<int64_t> dims) { return {DType::f32, dims}; }
inline Type i32(std::initializer_list<int64_t> dims) { return {DType::i32, dims}; }

/// Values in [-size, size) of 24 bits, so that nearly every sum rounds.
inline Array random(const Type& type, uint32_t site, double size = 2) {
  Array a{type, std::vector<double>(static_cast<size_t>(type.numel()))};
  for (size_t i = 0; i < a.values.size(); ++i) {
    const uint32_t word = philox4x32({static_cast<uint32_t>(i / 4), 0, 0, 0}, 7, site)[i % 4];
    a.values[i] = static_cast<double>(static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f) * size;
  }
  return a;
}
/// Integers in [low, high).
inline Array random_ints(const Type& type, uint32_t site, int64_t low, int64_t high) {
  Array a = random(type, site, 1);
  for (double& x : a.values) x = std::floor((x + 1) / 2 * static_cast<double>(high - low)) + static_cast<double>(low);
  return a;
}
inline Array filled(const Type& type, double x) {
  return {type, std::vector<double>(static_cast<size_t>(type.numel()), x)};
}

struct Problem {
  std::vector<Array> in;
  std::vector<Type> out;
  Attrs attrs;
  std::vector<int> in_place = {};  // operand that output i overwrites
};

using Bytes = std::vector<std::byte>;

/// Memory of a tensor whose f32 elements are stored as S.
template <class S>
class Buffer {
 public:
  explicit Buffer(const Type& type)
      : type_(type), bytes_(static_cast<size_t>(size() + element() + guard), std::byte{0xff}) {}
  explicit Buffer(const Array& a) : Buffer(a.type) {
    for (size_t i = 0; i < a.values.size(); ++i) {
      const double x = a.values[i];
      if (type_.dtype == DType::i32) {
        put(i, static_cast<int32_t>(x));
      } else if (type_.dtype == DType::f64) {
        put(i, x);
      } else if (type_.dtype == DType::bf16) {
        put(i, round_bf16(static_cast<float>(x)));
      } else {
        put(i, static_cast<S>(x));
      }
    }
  }
  Tensor tensor() { return {type_, bytes_.data() + element()}; }
  Bytes contents() const { return {bytes_.begin() + element(), bytes_.begin() + element() + size()}; }
  bool guard_intact() const {
    for (auto p = bytes_.end() - guard; p != bytes_.end(); ++p)
      if (*p != std::byte{0xff}) return false;
    return true;
  }

 private:
  static constexpr int64_t guard = 64;
  int64_t element() const { return type_.dtype == DType::f32 ? int64_t{sizeof(S)} : element_bytes(type_.dtype); }
  int64_t size() const { return type_.numel() * element(); }
  template <class T>
  void put(size_t i, T x) {
    std::memcpy(bytes_.data() + static_cast<size_t>(element()) + i * sizeof x, &x, sizeof x);
  }
  Type type_;
  Bytes bytes_;
};

inline ThreadPool& pool_of(int threads) {
  static std::unique_ptr<ThreadPool> pools[4];
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

/// The outputs of one run, as bytes.
template <class S = float>
std::vector<Bytes> run(const Problem& p, KernelRun kernel, KernelWorkspace workspace = nullptr, int threads = 1) {
  std::vector<Buffer<S>> in(p.in.begin(), p.in.end()), out;
  std::vector<Tensor> ins, outs;
  std::vector<Type> in_types;
  for (Buffer<S>& b : in) ins.push_back(b.tensor()), in_types.push_back(ins.back().type);
  out.reserve(p.out.size());
  for (size_t i = 0; i < p.out.size(); ++i) {
    out.emplace_back(p.out[i]);
    outs.push_back(i < p.in_place.size() ? ins[static_cast<size_t>(p.in_place[i])] : out.back().tensor());
  }
  // Workspaces are sized for f32.
  const int64_t bytes =
      workspace == nullptr ? 0 : workspace({in_types, p.out, p.attrs, threads}) * int64_t{sizeof(S)} / 4;
  Bytes space(static_cast<size_t>(bytes + 128), std::byte{0xff});
  std::byte* base = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64) % 64;
  kernel({ins, outs, p.attrs, base, pool_of(threads)});
  for (std::byte* b = base + bytes; b != base + bytes + 64; ++b)
    if (*b != std::byte{0xff}) ADD_FAILURE() << "wrote past the workspace of " << bytes << " bytes";
  std::vector<Bytes> results;
  for (size_t i = 0; i < p.out.size(); ++i) {
    const Buffer<S>& b = i < p.in_place.size() ? in[static_cast<size_t>(p.in_place[i])] : out[i];
    EXPECT_TRUE(b.guard_intact()) << "output " << i;
    results.push_back(b.contents());
  }
  return results;
}

template <class T>
std::vector<T> as(const Bytes& bytes) {
  std::vector<T> x(bytes.size() / sizeof(T));
  std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

/// A result in f32 or bf16.
inline std::vector<double> values_of(const Type& type, const Bytes& bytes) {
  std::vector<double> x;
  if (type.dtype == DType::bf16) {
    for (const BFloat16 v : as<BFloat16>(bytes)) x.push_back(widen(v));
  } else {
    for (const float v : as<float>(bytes)) x.push_back(v);
  }
  return x;
}

/// The first element that differs in its bits, NaN being equal to NaN; "" if none.
template <class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0)
      return "element " + std::to_string(i) + ": " + std::to_string(got[i]) + ", not " + std::to_string(want[i]);
  }
  return "";
}
inline std::string difference(const Type& type, const Bytes& got, const Bytes& want) {
  return type.dtype == DType::f64 ? difference(as<double>(got), as<double>(want))
                                  : difference(as<float>(got), as<float>(want));
}

/// Calls f(kernel, threads) for every kernel of the list that this CPU runs, takes f32, and 1, 2, 3 threads.
template <class F>
void for_each_kernel(std::span<const Kernel> list, const F& f) {
  EXPECT_FALSE(list.empty());
  for (const Kernel& kernel : list) {
    if (!cpu_runs(kernel.needs) || kernel.needs == CpuTarget::avx512_bf16) continue;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(std::string(kernel.name) + ", " + std::to_string(threads) + " threads");
      f(kernel, threads);
    }
  }
}

/// The definition, and the same formulas in FP64.
inline std::vector<Bytes> run_reference(const Problem& p, const RefKernel& reference) {
  return run(p, reference.f32, reference.workspace);
}
inline std::vector<Bytes> run_fp64(const Problem& p, const RefKernel& reference) {
  return run<double>(p, reference.f64, reference.workspace);
}

/// Every kernel of the list against the reference, bit for bit.
inline void expect_equals_reference(const Problem& p, std::span<const Kernel> list, const RefKernel& reference) {
  const std::vector<Bytes> want = run_reference(p, reference);
  for_each_kernel(list, [&](const Kernel& kernel, int threads) {
    const std::vector<Bytes> got = run(p, kernel.run, kernel.workspace, threads);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(difference(p.out[i], got[i], want[i]), "") << "output " << i;
  });
}

/// Every kernel of the list, and the reference, give the outputs with this hash: each machine checks its own path.
inline void expect_hash(const Problem& p, std::span<const Kernel> list, const RefKernel& reference,
                        const std::string& want) {
  const auto hash_of = [](const std::vector<Bytes>& outputs) {
    Bytes all;
    for (const Bytes& b : outputs) all.insert(all.end(), b.begin(), b.end());
    return hex16(xxh3(all.data(), all.size()));
  };
  EXPECT_EQ(hash_of(run_reference(p, reference)), want) << "the definition itself";
  for_each_kernel(list, [&](const Kernel& kernel, int threads) {
    EXPECT_EQ(hash_of(run(p, kernel.run, kernel.workspace, threads)), want);
  });
}

/// Largest |got - want| as a share of the largest |want|.
inline double relative_error(const Bytes& got, const Bytes& want) {
  const std::vector<float> g = as<float>(got);
  const std::vector<double> w = as<double>(want);
  double error = 0, size = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(g[i]) - w[i]));
    size = std::max(size, std::abs(w[i]));
  }
  return error / size;
}

}  // namespace nibble::testing
