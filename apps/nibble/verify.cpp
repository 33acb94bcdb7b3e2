// nibble verify hf DIR: the same logits, loss, gradients and greedy text as another implementation, or how far off.
#include <algorithm>
#include <cstdio>

#include "command.h"
#include "core/error.h"
#include "io/config.h"
#include "io/json.h"
#include "train/model_setup.h"
#include "train/verify_hf.h"

namespace nibble {
namespace {

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "layout" || arguments[0] == "gpu"))
    throw Error("E010", "verify {} is not in this version: one CPU, one process", arguments[0])
        .where("argument 1")
        .hint("nibble verify hf DIR");
  if (arguments.empty())
    throw Error("E007", "verify needs a subcommand").expected("hf", "nothing").hint("nibble verify hf DIR");
  if (arguments[0] != "hf")
    throw Error("E007", "verify {}: no such subcommand", arguments[0])
        .where("argument 1")
        .expected("hf", arguments[0])
        .hint("nibble verify hf DIR");
  if (arguments.size() < 2)
    throw Error("E204", "verify hf needs a folder with config.json, model.safetensors and golden.safetensors")
        .where("argument 2")
        .hint("nibble verify hf DIR");
  ResolveOptions grammar;
  grammar.command = "verify", grammar.operands = 2;
  const Resolved r = resolve(arguments, grammar);
  for (const std::string& notice : r.notices) fmt::print(stderr, "note: {}\n", notice);
  const std::vector<Comparison> list = compare_with_golden(arguments[1], resolve_threads(r.config.get_int("threads")),
                                                           resolve_target(r.config.get_string("cpu_target")));
  const bool fits = std::ranges::all_of(list, &Comparison::fits);
  if (r.config.get_bool("json")) {
    Json rows = Json::array();
    for (const Comparison& c : list)
      rows.push_back({{"tensor", c.name},
                      {"relative", c.relative},
                      {"limit", c.limit},
                      {"differing", c.differing},
                      {"fits", c.fits()}});
    fmt::print("{}\n", Json{{"fits", fits}, {"tensors", rows}}.dump());
    return fits ? exit_done : exit_no;
  }
  fmt::print("{:<60} {:>10} {:>10}\n", "tensor", "largest", "limit");
  for (const Comparison& c : list) {
    if (c.limit == 0)
      fmt::print("{:<60} {:>10} {:>10}  {}\n", c.name, c.differing, 0, c.fits() ? "equal" : "DIFFERENT");
    else
      fmt::print("{:<60} {:>10.1e} {:>10.0e}  {}\n", c.name, c.relative, c.limit, c.fits() ? "ok" : "TOO LARGE");
  }
  fmt::print("{}: {} of {} tensors within their limits\n", arguments[1], std::ranges::count_if(list, &Comparison::fits),
             list.size());
  return fits ? exit_done : exit_no;
}

constexpr std::string_view help =
    R"(DESCRIPTION
    Loads DIR's config.json and model.safetensors, computes logits, loss,
    gradients and a greedy continuation in float32 and compares them with DIR's
    golden.safetensors: one line per tensor, worst first. "largest" is the
    largest difference over the largest value of the tensor.

EXIT STATUS
    0 all within their limits   1 not   66 DIR lacks a file

EXAMPLES
    nibble verify hf tests/golden/hf/llama
)";

}  // namespace

constinit const Command verify_command{"verify", "nibble verify hf DIR [key=value ...]",
                                       "compare with another implementation", help, run};

}  // namespace nibble
