// nibble as a library: define a model with a Builder, differentiate it, plan it, run it. docs/library.md walks through
// an example. The program `nibble` is a thin client of the same headers.
#pragma once

#include "core/error.h"           // Error: id, message, exit code
#include "graph/builder.h"        // Graph, Value, Builder
#include "graph/print.h"          // a graph as text, and back
#include "graph/verify.h"         // the legal graph
#include "models/graphs.h"        // the graphs of a Llama: loss, logits, decoding
#include "ops/all.h"              // the table of ops
#include "ops/ops.h"              // linear, rms_norm, attention, cross_entropy, adamw ...
#include "passes/grad.h"          // Graph -> Graph with gradients
#include "runtime/interpreter.h"  // the reference, in float, double or complex
#include "runtime/program.h"      // plan_program, Program, Executable
