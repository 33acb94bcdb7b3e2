// A copy of as many bytes as an operation touches, timed right beside it: what memory, or the cache that holds them,
// gives at that moment.
#pragma once
#include <memory>

#include "core/threads.h"

namespace nibble {

class CopyProbe {
 public:
  explicit CopyProbe(ThreadPool& pool);
  ~CopyProbe();
  /// Bytes a second, read plus written, of all threads together, for about 2 ms; half of `bytes` (64 KiB to 128 MiB) is
  /// read, half written. 0 on a CPU without AVX2.
  double measure(double bytes);

 private:
  struct Arrays;
  ThreadPool& pool_;
  std::unique_ptr<Arrays> arrays_;
};

}  // namespace nibble
