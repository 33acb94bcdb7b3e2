// Rule 1 of the design: an op is whole. For every op of all_ops(): shape rule, cost, kernels, gradient by complex step,
// sharding string, and every kernel this CPU runs against the reference, bit for bit. The rows: op_rows.h.
#include "ops/all.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>

#include "ops/op_rows.h"
#include "ops/sharding.h"
#include "ops/values.h"
#include "passes/grad.h"
#include "runtime/program.h"
#include "runtime/registry.h"

namespace nibble {
namespace {

std::vector<Dense> run_kernel(const Op& op, const Attrs& attrs, const std::vector<Dense>& in, Scalar scalar,
                              KernelRun run, KernelWorkspace workspace, int threads, bool from_zero = false,
                              const std::vector<InPlace>& over = {});

// Numbers rounded to nearest in the type's format.
Dense quantized(const Type& type, std::vector<double> x) {
  const Attrs attrs{{"row", std::string(name_of(type.dtype))}, {"tokens", type.rows()}, {"site", int64_t{0}}};
  const std::vector<Dense> in = {{type.as(DType::f32), std::move(x)}, {i32({quantize_words}), {0, 0, 0, 0}}};
  const RefKernel& ref = *kernels_of(quantize_op).ref;
  return run_kernel(quantize_op, attrs, in, Scalar::f32, ref.f32, ref.workspace, 1)[0];
}

std::vector<Dense> operands(const OpRow& row, uint64_t seed) {
  Random random(seed);
  std::vector<Dense> list;
  for (const Operand& o : row.in) {
    Dense d{o.type, {}};
    for (int64_t i = 0; i < o.type.numel(); ++i) {
      if (!o.fixed.empty())
        d.x.push_back(o.fixed[static_cast<size_t>(i)]);
      else if (o.type.dtype == DType::i32)
        d.x.push_back(o.low + static_cast<double>(random.below(static_cast<int64_t>(o.high - o.low) + 1)));
      else
        d.x.push_back(random.uniform(o.low, o.high));
    }
    list.push_back(is_quantized(o.type.dtype) ? quantized(o.type, std::move(d.x)) : std::move(d));
  }
  return list;
}

Types types_of(const std::vector<Dense>& list) {
  Types types;
  for (const Dense& d : list) types.push_back(d.type);
  return types;
}

// Memory that no kernel left behind.
struct Buffer {
  explicit Buffer(int64_t bytes) : memory(static_cast<size_t>(bytes) + 64, std::byte{0xa5}) {}
  std::byte* data() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64; }
  std::vector<std::byte> memory;
};

// One kernel's run in memory of its own, results as doubles. `over`: results that lie where an operand does, beside
// those in place.
std::vector<Dense> run_kernel(const Op& op, const Attrs& attrs, const std::vector<Dense>& in, Scalar scalar,
                              KernelRun run, KernelWorkspace workspace, int threads, bool from_zero,
                              const std::vector<InPlace>& over) {
  const Types in_types = types_of(in), out_types = result_types({op, in_types, {}, attrs, ""});
  std::list<Buffer> memory;
  const auto allocate = [&memory](const Type& type) {
    return Tensor{type, memory.emplace_back(std::max(type.numel() * 16, stored(type))).data()};
  };
  std::vector<Tensor> in_tensors, out_tensors;
  for (const Dense& d : in) {
    in_tensors.push_back(allocate(d.type));
    for (int64_t i = 0; i < stored(d.type); ++i) store(in_tensors.back(), scalar, i, d.x[static_cast<size_t>(i)]);
  }
  for (size_t k = 0; k < out_types.size(); ++k) {
    Tensor out;
    if (op.view) out = in_tensors[0];
    for (const InPlace& w : op.in_place)
      if (static_cast<size_t>(w.out) == k) out = in_tensors[static_cast<size_t>(w.in)];
    for (const InPlace& w : over)
      if (static_cast<size_t>(w.out) == k) out = in_tensors[static_cast<size_t>(w.in)];
    out_tensors.push_back(out.data != nullptr ? Tensor{out_types[k], out.data} : allocate(out_types[k]));
  }
  ThreadPool pool(threads);
  Buffer space(workspace != nullptr ? workspace({in_types, out_types, attrs, threads}) * 4 : 0);
  if (!op.view) run({in_tensors, out_tensors, attrs, space.data(), pool, from_zero});
  std::vector<Dense> out;
  for (const Tensor& t : out_tensors) {
    out.push_back({t.type, {}});
    for (int64_t i = 0; i < stored(t.type); ++i) out.back().x.push_back(load(t, scalar, i).real());
  }
  return out;
}

std::vector<Dense> run_reference(const Op& op, const Attrs& attrs, const std::vector<Dense>& in) {
  if (op.view) return run_kernel(op, attrs, in, Scalar::f64, nullptr, nullptr, 1);
  const RefKernel& ref = *kernels_of(op).ref;
  if (ref.f64 == nullptr) return run_kernel(op, attrs, in, Scalar::f32, ref.f32, ref.workspace, 1);
  return run_kernel(op, attrs, in, Scalar::f64, ref.f64, ref.workspace, 1);
}

std::string name_of_row(const OpRow& row) { return fmt::format("{} {}", row.op->name, to_string(row.attrs)); }

bool has_one_pattern_an_operand(const OpRow& row) {
  if (!row.op->variadic) return true;
  const std::string_view text = row.op->sharding.substr(0, row.op->sharding.find("->"));
  return static_cast<size_t>(std::ranges::count(text, ',')) + 1 == row.in.size();
}

// quantize makes a copy or two; its string is that of a row copy.
bool has_one_pattern_a_result(const OpRow& row) { return row.op != &quantize_op || row.out.size() == 1; }

// Operands that only come in pairs, or are asked for by an attribute.
bool is_exact_in_number(const Op* op) {
  return op == &linear_dgrad_op || op == &qlinear_dgrad_op || op == &quantize_op;
}

TEST(DesignRule1, EveryOpHasARow) {
  const std::vector<OpRow> rows = op_rows();
  for (const Op* op : all_ops()) {
    EXPECT_TRUE(std::ranges::any_of(rows, [op](const OpRow& r) { return r.op == op; })) << "no row for " << op->name;
    EXPECT_EQ(find_op(op->name), op);
  }
  for (const OpRow& row : rows) EXPECT_EQ(std::ranges::count(all_ops(), row.op), 1) << row.op->name;
  EXPECT_EQ(find_op("input"), &input_op);
  EXPECT_EQ(find_op("read"), &read_op);
  EXPECT_EQ(find_op("attention_flash"), nullptr);
}

TEST(DesignRule1, ShapeRuleGivesTheStatedTypesAndRefusesOthers) {
  for (const OpRow& row : op_rows()) {
    Types in;
    for (const Operand& o : row.in) in.push_back(o.type);
    const auto shape = [&](const Types& types) { return result_types({*row.op, types, {}, row.attrs, "a/label"}); };
    EXPECT_EQ(shape(in), row.out) << name_of_row(row);
    for (const auto& [operand, type] : row.broken) {
      Types broken = in;
      broken[operand] = type;
      const std::string error = error_of([&] { shape(broken); });
      EXPECT_TRUE(error.starts_with("E901") && says(error, row.op->name) && says(error, to_string(type)) &&
                  says(error, "a/label"))
          << name_of_row(row) << " with operand " << operand << " " << to_string(type) << ": " << error;
    }
    Types more = in, fewer = in;
    more.push_back(f32({3}));
    EXPECT_TRUE(error_of([&] { shape(more); }).starts_with("E901")) << name_of_row(row);
    if (fewer.empty()) continue;
    fewer.pop_back();
    const bool may_have_fewer = row.op->variadic && !is_exact_in_number(row.op) && !has_one_pattern_an_operand(row);
    EXPECT_EQ(error_of([&] { shape(fewer); }).starts_with("E901"), !may_have_fewer) << name_of_row(row);
  }
}

TEST(DesignRule1, CostIsTheStatedOne) {
  for (const OpRow& row : op_rows()) {
    Types in;
    for (const Operand& o : row.in) in.push_back(o.type);
    const Cost cost = row.op->cost({*row.op, in, row.out, row.attrs, ""});
    EXPECT_EQ(cost.flops, row.cost.flops) << name_of_row(row);
    EXPECT_EQ(cost.bytes, row.cost.bytes) << name_of_row(row);
    EXPECT_EQ(cost.bytes == 0, row.op->view) << name_of_row(row) << ": only a view moves nothing";
  }
}

TEST(DesignRule1, EveryOpHasAReferenceKernel) {
  for (const Op* op : all_ops()) {
    const auto rows = kernel_table();
    EXPECT_EQ(std::ranges::count(rows, op, &KernelRow::op), op->view ? 0 : 1) << op->name;
    if (op->view) continue;
    const RefKernel& ref = *kernels_of(*op).ref;
    EXPECT_NE(ref.f32, nullptr) << op->name;
    EXPECT_EQ(ref.f64 == nullptr, ref.complex == nullptr) << op->name;
    EXPECT_TRUE(op->vjp == nullptr || ref.complex != nullptr) << op->name << " has a gradient that cannot be tested";
  }
  EXPECT_TRUE(says(error_of([] { kernels_of(split_heads_op); }), "split_heads has no row"));
}

// ---- gradients ----

struct Recorded {
  Graph graph;
  Values in, out;
};
Recorded record(const OpRow& row) {
  Recorded r;
  Builder b(r.graph);
  for (size_t i = 0; i < row.in.size(); ++i) r.in.push_back(b.input(fmt::format("in.{}", i), row.in[i].type));
  r.out = b.emit(*row.op, r.in, row.attrs);
  return r;
}

// d/dh of the scalar whose gradient the op gives, with operand k moved along `direction`: sum of seed * result 0, or
// the batch's loss for cross_entropy, which is the root of the gradient.
double derivative(const OpRow& row, const std::vector<Dense>& in, const std::vector<double>& seed, size_t k,
                  const std::vector<double>& direction) {
  constexpr double h = 1e-30;
  const Recorded r = record(row);
  Interpreter run(r.graph, Scalar::complex);
  for (size_t i = 0; i < in.size(); ++i)
    for (int64_t j = 0; j < in[i].type.numel(); ++j) {
      const auto at = static_cast<size_t>(j);
      store(run.value(r.in[i]), Scalar::complex, j, {in[i].x[at], i == k ? h * direction[at] : 0});
    }
  run.run();
  double sum = 0;
  for (int64_t j = 0; j < row.out[0].numel(); ++j) {
    std::complex<double> y = load(run.value(r.out[0]), Scalar::complex, j);
    if (row.op == &cross_entropy_op) {
      const std::complex<double> lse = load(run.value(r.out[1]), Scalar::complex, j);
      y = (y + row.attrs.get_double("z_loss") * lse * lse) * in[3].x[0];
    }
    sum += seed[static_cast<size_t>(j)] * y.imag() / h;
  }
  return sum;
}

TEST(DesignRule1, GradientIsTheDerivativeByComplexStep) {
  for (const OpRow& row : op_rows()) {
    EXPECT_EQ(row.op->vjp == nullptr, row.differentiable.empty()) << name_of_row(row);
    if (row.differentiable.empty()) continue;
    const std::vector<Dense> in = operands(row, 7);
    Recorded r = record(row);
    Builder b(r.graph);
    Random random(11);
    std::vector<double> seed(static_cast<size_t>(row.out[0].numel()), 1.0);
    const bool is_root = row.op == &cross_entropy_op;
    const Value seed_value = is_root ? ones(b, row.out[0]) : b.input("seed", row.out[0]);
    if (!is_root)
      for (double& s : seed) s = random.uniform(-1, 1);
    Values wanted;
    for (const int i : row.differentiable) wanted.push_back(r.in[static_cast<size_t>(i)]);
    for (size_t i = 0; i < r.in.size(); ++i)
      b.output(fmt::format("keep.{}", i), r.in[i]);  // the graph needs no such operand: bias of scale
    const GradResult g = grad(r.graph, {{r.out[0], seed_value}}, wanted);
    Interpreter run(r.graph, Scalar::f64);
    for (size_t i = 0; i < in.size(); ++i)
      for (int64_t j = 0; j < in[i].type.numel(); ++j)
        store(run.input(fmt::format("in.{}", i)), Scalar::f64, j, in[i].x[static_cast<size_t>(j)]);
    if (!is_root)
      for (int64_t j = 0; j < row.out[0].numel(); ++j)
        store(run.input("seed"), Scalar::f64, j, seed[static_cast<size_t>(j)]);
    run.run();
    for (size_t w = 0; w < wanted.size(); ++w) {
      const auto k = static_cast<size_t>(row.differentiable[w]);
      for (int trial = 0; trial < 4; ++trial) {
        std::vector<double> direction;
        double got = 0, size = 0;
        for (int64_t j = 0; j < in[k].type.numel(); ++j) {
          direction.push_back(random.uniform(-1, 1));
          const double term = load(run.value(g.of_wanted[w]), Scalar::f64, j).real() * direction.back();
          got += term, size += std::abs(term);
        }
        EXPECT_GT(size, 0) << name_of_row(row) << " operand " << k;
        EXPECT_NEAR(got, derivative(row, in, seed, k, direction), 1e-12 * size) << name_of_row(row) << " operand " << k;
      }
    }
  }
}

TEST(DesignRule1, AnOperandWithoutGradientIsRefused) {
  for (const OpRow& row : op_rows())
    for (size_t k = 0; k < row.in.size(); ++k) {
      if (row.in[k].type.dtype != DType::f32 || std::ranges::count(row.differentiable, static_cast<int>(k)) > 0 ||
          !row.op->in_place.empty())
        continue;
      Recorded r = record(row);
      Builder b(r.graph);
      const Value seed = ones(b, row.out[0]);
      const std::string error = error_of([&] { grad(r.graph, {{r.out[0], seed}}, {r.in[k]}); });
      EXPECT_TRUE(says(error, "E901") && says(error, "not differentiable"))
          << name_of_row(row) << " operand " << k << ": " << error;
    }
}

// The results of `record(b, operands)` as bytes, by the kernels of a target. Operands are states, which may be written.
template <class Record>
std::vector<std::vector<std::byte>> results_of(const OpRow& row, CpuTarget target, const Record& record) {
  std::vector<NamedGraph> graphs(1);
  Builder b(graphs[0].graph);
  Values in;
  for (size_t i = 0; i < row.in.size(); ++i)
    in.push_back(b.read(StateRole::constant, fmt::format("in.{}", i), row.in[i].type));
  const Values out = record(b, in);
  for (size_t k = 0; k < out.size(); ++k) b.output(fmt::format("out.{}", k), out[k]);
  Program program(plan_program(std::move(graphs), 2, target, false));
  const std::vector<Dense> contents = operands(row, 7);
  for (size_t i = 0; i < in.size(); ++i) {
    const Tensor t = program.state(StateRole::constant, fmt::format("in.{}", i));
    for (int64_t j = 0; j < t.numel(); ++j) store(t, Scalar::f32, j, contents[i].x[static_cast<size_t>(j)]);
  }
  program.executable("").run();
  std::vector<std::vector<std::byte>> results;
  for (size_t k = 0; k < out.size(); ++k) {
    const Tensor t = program.executable("").output(fmt::format("out.{}", k));
    results.emplace_back(t.as<std::byte>(), t.as<std::byte>() + t.type.nbytes());
  }
  return results;
}

// In f32 and, with every rounding point, in bf16; for the kernels of each target.
TEST(DesignRule7, ComposedFormEqualsTheOp) {
  int fused = 0;
  for (const OpRow& plain : op_rows()) {
    if (plain.op->composed == nullptr) continue;
    ++fused;
    for (const OpRow& row : {plain, in_bf16(plain)})
      for (const CpuTarget target : cpu_targets()) {
        const auto whole =
            results_of(row, target, [&](Builder& b, const Values& in) { return b.emit(*row.op, in, row.attrs); });
        const auto parts = results_of(row, target, [&](Builder& b, const Values& in) {
          return row.op->composed(b, {row.op, in, {}, row.attrs, ""});
        });
        ASSERT_EQ(whole.size(), row.out.size());
        for (size_t k = 0; k < whole.size(); ++k)
          EXPECT_EQ(whole[k], parts[k]) << name_of_row(row) << " " << to_string(row.out[k]) << " " << name_of(target);
      }
  }
  EXPECT_GE(fused, 4);
}

// ---- sharding ----

std::string sharding_error(const OpRow& row, std::string_view text, int* cuts) {
  try {
    const RunOp run = [&row](const std::vector<Dense>& in) { return run_reference(*row.op, row.attrs, in); };
    return Sharding(text).check(operands(row, 7), 1e-12, run, cuts);
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(DesignRule1, ShardingStringIsTrue) {
  for (const OpRow& row : op_rows()) {
    if (!has_one_pattern_an_operand(row) || !has_one_pattern_a_result(row)) continue;
    int cuts = 0;
    EXPECT_EQ(sharding_error(row, row.op->sharding, &cuts), "") << name_of_row(row) << " " << row.op->sharding;
    EXPECT_EQ(cuts, row.cuts) << name_of_row(row);
  }
}

TEST(DesignRule1, AFalseShardingStringIsFound) {
  struct Lie {
    const Op* op;
    const char *text, *what;
  };
  // clang-format off
  const Lie lies[] = {{&linear_op, "...k, nk -> ...n", "cut along k: result 0["},
                      {&linear_op, "...k, kn -> ...n | k sum", "axis k of f32[7, 12] is 12 elsewhere"},
                      {&linear_op, "...k, nk -> ...n | n sum, k whole, z whole", "a note names z"},
                      {&linear_op, "...k, nk, n -> ...n", "number of patterns"},
                      {&rms_norm_op, "...c, c -> ...c, ...", "cut along c: result 0["},
                      {&rms_norm_grad_op, "c, ...c, ...c, c, ... -> c, ...c | c whole, ... sum", "cut along .0: result 0["},
                      {&rms_norm_grad_op, "+c, ...c, ...c, c, ... -> c, ...c | c whole", "cut along .0: result 0["},
                      {&attention_op, "bthd, btkd, btkd, bt -> bthd, bth | d whole, h with k", "cut along t: result 0["},
                      {&attention_op, "bthd, btkd, btkd, bt -> bthd, bth | t whole, d whole, k whole", "cut along h: "},
                      {&cross_entropy_op, "...e, ve, ..., 1 -> ..., ... | v whole", "cut along e: result 0["},
                      {&add_op, "..., ... -> ... | ... sum, ... half", "no note: ... half"},
                      {&add_op, "..., ...", "no ->"}};
  // clang-format on
  const std::vector<OpRow> rows = op_rows();
  for (const Lie& lie : lies) {
    const OpRow& row = *std::ranges::find(rows, lie.op, &OpRow::op);
    int cuts = 0;
    EXPECT_TRUE(says(sharding_error(row, lie.text, &cuts), lie.what)) << lie.text;
  }
}

// ---- kernels ----

TEST(TrainingOrders, EveryKernelEqualsTheReference) {
  for (const OpRow& row : op_rows()) {
    if (row.op->view) continue;
    const std::vector<Dense> in = operands(row, 7);
    const RefKernel& ref = *kernels_of(*row.op).ref;
    const std::vector<Dense> want = run_kernel(*row.op, row.attrs, in, Scalar::f32, ref.f32, ref.workspace, 1);
    const Types in_types = types_of(in);
    for (const CpuTarget target : cpu_targets())
      for (const int threads : {1, 3}) {
        const KernelChoice k = choose_kernel(*row.op, {in_types, row.out, row.attrs, threads}, target);
        const std::vector<Dense> got = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, threads);
        for (size_t r = 0; r < want.size(); ++r)
          EXPECT_EQ(std::memcmp(got[r].x.data(), want[r].x.data(), want[r].x.size() * 8), 0)
              << name_of_row(row) << " result " << r << " by " << k.name << " with " << threads << " threads";
      }
  }
}

// What is not finite poisons a copy (spec/precision.md 2.3), and with it every product: the same bytes by every kernel.
TEST(PrecisionP15, EveryKernelPoisonsAsTheReference) {
  int rows = 0;
  for (const OpRow& row : op_rows()) {
    const bool weight = row.op == &quantize_weight_op || row.op == &quantize_weights_op;
    if (row.op != &quantize_op && !weight) continue;
    ++rows;
    const size_t x = weight ? row.in.size() - 2 : 0;
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)})
      for (const size_t place : {size_t{0}, size_t{133}}) {
        std::vector<Dense> in = operands(row, 7);
        in[x].x[place] = bad;
        const RefKernel& ref = *kernels_of(*row.op).ref;
        const std::vector<Dense> want = run_kernel(*row.op, row.attrs, in, Scalar::f32, ref.f32, ref.workspace, 1);
        const Types in_types = types_of(in);
        for (const CpuTarget target : cpu_targets()) {
          const KernelChoice k = choose_kernel(*row.op, {in_types, row.out, row.attrs, 3}, target);
          const std::vector<Dense> got = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, 3);
          for (size_t r = 0; r < want.size(); ++r) {
            EXPECT_EQ(std::memcmp(got[r].x.data(), want[r].x.data(), want[r].x.size() * 8), 0)
                << name_of_row(row) << " result " << r << " by " << k.name << " with " << bad;
            const std::vector<double> amax(want[r].x.begin(), want[r].x.begin() + 4);
            EXPECT_EQ(amax, (std::vector<double>{0, 0, 0xC0, 0x7F})) << name_of_row(row);
          }
        }
      }
  }
  EXPECT_GE(rows, 7);
}

TEST(PrecisionP28, AProductComesOutInF32OrBf16) {
  for (const OpRow& row : op_rows()) {
    if (row.op != &qlinear_op && row.op != &qlinear_dgrad_op) continue;
    Types in;
    for (const Operand& o : row.in) in.push_back(o.type);
    for (const char* dtype : {"f64", "i32", "nvfp4", "e4m3", "f16"}) {
      const Attrs attrs{{"dtype", std::string(dtype)}};
      const std::string error = error_of([&] { result_types({*row.op, in, {}, attrs, "a/label"}); });
      EXPECT_TRUE(says(error, "E901") && says(error, "dtype must be f32 or bf16")) << dtype << ": " << error;
    }
  }
}

bool is_half(const Type& t) { return t.dtype == DType::bf16; }

// Equal to the bit, or where vdpbf16ps multiplied (gemm_bf16.h) near it: one unit of bf16, and what cancellation leaves
// of the rounding of the largest. Attention rounds its probabilities too.
void expect_result(const Op& op, const Dense& got, const Dense& want, std::string_view kernel,
                   const std::string& what) {
  if (kernel != name_of(CpuTarget::avx512_bf16)) {
    EXPECT_EQ(std::memcmp(got.x.data(), want.x.data(), want.x.size() * 8), 0) << what;
    return;
  }
  const double of_largest = &op == &attention_op || &op == &attention_grad_op ? 0x1p-8 : 0x1p-16;
  double largest = 0;
  for (const double x : want.x) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < want.x.size(); ++i)
    EXPECT_NEAR(got.x[i], want.x[i], 0x1p-7 * std::abs(want.x[i]) + of_largest * largest) << what << " element " << i;
}

// The definition in bf16: widened operands, the op in f32, one rounding of each bf16 result.
TEST(TrainingBf16, EveryKernelEqualsTheF32OpRoundedOnce) {
  int rows = 0;
  for (const OpRow& plain : op_rows()) {
    const OpRow row = in_bf16(plain);
    if (row.op->view || std::ranges::none_of(row.in, [](const Operand& o) { return is_half(o.type); })) continue;
    if (row.op->composed != nullptr) continue;  // rounds between its parts too: DesignRule7
    ++rows;
    std::vector<Dense> in = operands(row, 7);
    for (Dense& d : in)
      if (is_half(d.type))
        for (double& x : d.x) x = widen(round_bf16(static_cast<float>(x)));
    std::vector<Dense> wide = in;
    for (Dense& d : wide)
      if (is_half(d.type)) d.type.dtype = DType::f32;
    const RefKernel& ref = *kernels_of(*row.op).ref;
    std::vector<Dense> want = run_kernel(*row.op, row.attrs, wide, Scalar::f32, ref.f32, ref.workspace, 1);
    for (size_t r = 0; r < want.size(); ++r)
      if (is_half(row.out[r]))
        for (double& x : want[r].x) x = widen(round_bf16(static_cast<float>(x)));
    const Types in_types = types_of(in);
    for (const CpuTarget target : cpu_targets())
      for (const int threads : {1, 3}) {
        const KernelChoice k = choose_kernel(*row.op, {in_types, row.out, row.attrs, threads}, target);
        const std::vector<Dense> got = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, threads);
        for (size_t r = 0; r < want.size(); ++r) {
          EXPECT_EQ(got[r].type, row.out[r]) << name_of_row(row);
          if (row.op == &cross_entropy_grad_op && r < 2) continue;  // its dlogits are rounded too: the next test
          expect_result(*row.op, got[r], want[r], k.name,
                        fmt::format("{} result {} by {} with {} threads", name_of_row(row), r, k.name, threads));
        }
      }
  }
  EXPECT_GE(rows, 20);
}

// dlogits are operands of two products, so they are bf16 like the others: dh and dW are those of the rounded ones.
TEST(TrainingBf16, CrossEntropyRoundsItsLogitGradients) {
  for (const OpRow& plain : op_rows()) {
    if (plain.op != &cross_entropy_grad_op) continue;
    const OpRow row = in_bf16(plain);
    const std::vector<Dense> in = operands(row, 7);
    const Types types = types_of(in);
    const RefKernel& ref = *kernels_of(*row.op).ref;
    const std::vector<Dense> want = run_kernel(*row.op, row.attrs, in, Scalar::f32, ref.bf16, ref.bf16_workspace, 1);
    const int64_t v = row.in[2].type.dim(0), e = row.in[2].type.dim(1), tokens = row.in[1].type.rows();
    std::vector<double> h, w, dw = in[0].x;
    for (const double x : in[1].x) h.push_back(widen(round_bf16(static_cast<float>(x))));
    for (const double x : in[2].x) w.push_back(widen(round_bf16(static_cast<float>(x))));
    const auto at = [](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
    for (int64_t t = 0; t < tokens; ++t) {
      const auto target = static_cast<int64_t>(at(in[3].x, t));
      for (int64_t j = 0; j < v && target >= 0; ++j) {
        double logit = 0;
        for (int64_t k = 0; k < e; ++k) logit += at(h, t * e + k) * at(w, j * e + k);
        const double lse = at(want[3].x, t), p = std::exp(logit - lse) * (1 + 2 * row.attrs.get_double("z_loss") * lse);
        const double exact = (p - (j == target ? 1 : 0)) * at(in[4].x, 0);
        const double rounded = widen(round_bf16(static_cast<float>(exact)));
        for (int64_t k = 0; k < e; ++k) dw[static_cast<size_t>(j * e + k)] += rounded * at(h, t * e + k);
      }
    }
    for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(want[0].x[i], dw[i], 2e-6);
    for (const CpuTarget target : cpu_targets()) {
      const KernelChoice k = choose_kernel(*row.op, {types, row.out, row.attrs, 3}, target);
      const std::vector<Dense> got = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, 3);
      for (size_t r = 0; r < want.size(); ++r)
        expect_result(*row.op, got[r], want[r], k.name, fmt::format("{} result {} by {}", name_of_row(row), r, k.name));
    }
  }
}

// What continues a sum (a + in front of its pattern) can start one: as from +0, whatever the accumulator holds.
TEST(TrainingOrders, EveryKernelStartsASumFromZero) {
  int accumulating = 0;
  for (const OpRow& plain : op_rows()) {
    if (!plain.op->sharding.starts_with('+')) continue;
    ++accumulating;
    for (const OpRow& row : {plain, in_bf16(plain)}) {
      std::vector<Dense> in = operands(row, 7), zero = in;
      std::ranges::fill(zero[0].x, 0.0), std::ranges::fill(in[0].x, NAN);
      const Types in_types = types_of(in);
      for (const CpuTarget target : cpu_targets()) {
        const KernelChoice k = choose_kernel(*row.op, {in_types, row.out, row.attrs, 3}, target);
        const auto run = [&](const std::vector<Dense>& operand, bool from_zero) {
          return run_kernel(*row.op, row.attrs, operand, Scalar::f32, k.run, k.workspace, 3, from_zero);
        };
        const std::vector<Dense> want = run(zero, false), got = run(in, true);
        for (size_t r = 0; r < want.size(); ++r)
          EXPECT_EQ(std::memcmp(got[r].x.data(), want[r].x.data(), want[r].x.size() * 8), 0)
              << name_of_row(row) << " result " << r << " by " << k.name;
      }
    }
  }
  EXPECT_GE(accumulating, 5);
}

// Op::reuses: a result written over an operand has the same bits, two results over two operands as well.
TEST(DesignRule1, ResultsMayLieWhereTheOpSays) {
  int tried = 0;
  for (const OpRow& row : op_rows()) {
    const std::span<const InPlace> reuses = row.op->reuses;
    const std::vector<Dense> in = operands(row, 7);
    const Types in_types = types_of(in);
    const auto expect_same = [&](const std::vector<InPlace>& over) {
      for (const InPlace& w : over)
        if (in_types[static_cast<size_t>(w.in)].nbytes() != row.out[static_cast<size_t>(w.out)].nbytes()) return;
      for (const CpuTarget target : cpu_targets())
        for (const int threads : {1, 3}) {
          const KernelChoice k = choose_kernel(*row.op, {in_types, row.out, row.attrs, threads}, target);
          const auto want = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, threads);
          const auto got = run_kernel(*row.op, row.attrs, in, Scalar::f32, k.run, k.workspace, threads, false, over);
          for (size_t r = 0; r < want.size(); ++r)
            EXPECT_EQ(std::memcmp(got[r].x.data(), want[r].x.data(), want[r].x.size() * 8), 0)
                << name_of_row(row) << " result " << r << " by " << k.name << " with " << threads << " threads";
        }
      ++tried;
    };
    for (size_t a = 0; a < reuses.size(); ++a) {
      expect_same({reuses[a]});
      for (size_t b = 0; b < a; ++b)
        if (reuses[a].out != reuses[b].out && reuses[a].in != reuses[b].in) expect_same({reuses[a], reuses[b]});
    }
  }
  EXPECT_GE(tried, 10);
}

}  // namespace
}  // namespace nibble
