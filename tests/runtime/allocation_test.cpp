// Nothing allocates during a step: malloc and mmap are counted in this program, on all threads.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "runtime/tiny_program.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // the sanitizers replace malloc themselves

namespace {
std::atomic<int64_t> allocations{0};
std::atomic<size_t> last_mapping{0};
}  // namespace

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) { return ++allocations, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++allocations, __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return ++allocations, __libc_realloc(old, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return ++allocations, __libc_memalign(alignment, bytes); }
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  ++allocations, last_mapping = bytes;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}

namespace nibble {
namespace {

TEST(RuntimeAllocation, TheCountersCount) {
  int64_t before = allocations;
  int* volatile p = new int(3);
  delete p;
  EXPECT_EQ(allocations - before, 1);
  before = allocations;
  std::vector<int> list(100);
  EXPECT_EQ(allocations - before, 1);
  struct alignas(64) Wide {
    char x[64];
  };
  before = allocations;
  Wide* volatile w = new Wide;
  delete w;
  EXPECT_EQ(allocations - before, 1);
}

TEST(RuntimeAllocation, TheArenaIsOnePieceOfThePlannedSize) {
  const ProgramPlan plan = plan_program(tiny_graphs(tiny_llama()), 1, CpuTarget::ref);
  const Program program(plan);
  EXPECT_EQ(last_mapping, static_cast<size_t>(plan.arena_bytes()));
}

TEST(RuntimeAllocation, NothingAllocatesDuringAStep) {
  for (const CpuTarget target : cpu_targets())
    for (const int threads : {1, 3}) {
      const LlamaConfig c = tiny_llama();
      std::vector<NamedGraph> graphs = tiny_graphs(c);
      graphs.push_back({"decode", llama_decode_graph(c, 3, tiny_shape.length)});
      graphs.push_back({"loss", llama_loss_graph(c, tiny_shape, 0)});
      Program program(plan_program(std::move(graphs), threads, target));
      fill(program, "microbatch", tiny_inputs(c, tiny_shape));
      Executable& decode = program.executable("decode");
      std::fill_n(decode.input("tokens").as<int32_t>(), 3, 1);
      for (const char* name : {"microbatch", "gradient_norm", "update", "loss", "decode"}) {
        Executable& x = program.executable(name);
        if (x.plan().name == "decode") {  // its inputs share memory with the other graphs' values
          for (int i = 0; i < 3; ++i) x.input("tokens").as<int32_t>()[i] = i, x.input("positions").as<int32_t>()[i] = i;
          x.input("span").as<int32_t>()[0] = 0, x.input("span").as<int32_t>()[1] = 3,
          x.input("last").as<int32_t>()[0] = 2;
        } else if (x.plan().name == "loss") {
          fill(program, "loss", tiny_inputs(c, tiny_shape));
        }
        Executable::NonFinite found;
        const int64_t before = allocations;
        program.zero(StateRole::gradient);
        x.run();
        x.set_profiling(true);
        x.run();
        x.run_checked(&found);
        EXPECT_EQ(allocations - before, 0) << name << " on " << name_of(target) << " with " << threads << " threads";
      }
    }
}

}  // namespace
}  // namespace nibble
#endif
