// What an op's vjp sees: one node, the gradients of its results, and where the gradients of its inputs go.
// Implemented by passes/grad; kept here so that ops depend on nothing above them.
#pragma once
#include "graph/builder.h"

namespace nibble {

class Vjp {
 public:
  virtual ~Vjp() = default;
  /// Where the gradient's nodes are recorded.
  virtual Builder& builder() = 0;
  /// The node whose inputs want gradients.
  virtual const Node& node() const = 0;
  Value in(int i) const { return node().in[static_cast<size_t>(i)]; }
  Value out(int i) const { return node().out[static_cast<size_t>(i)]; }
  /// Gradient of result i; not valid() if nothing depends on it.
  virtual Value grad(int i) const = 0;
  /// Whether anybody asked for the gradient of input i.
  virtual bool wants(int i) const = 0;
  /// Adds g to the gradient of input i.
  virtual void give(int i, Value g) = 0;
  /// For inputs whose gradient is a sum over tokens (weights): the accumulator that the sum starts from. A parameter's
  /// is its gradient state, so that sums go on over microbatches (spec/training.md 2.11); any other value's is zeros.
  virtual Value accumulator(int i) = 0;
  /// The accumulator of input i after this node's terms were added; completes the use of this input.
  virtual void give_accumulated(int i, Value sum) = 0;
  /// Readers of result i read v instead: the gradient's kernel computed it too, and the forward node falls away.
  virtual void replace(int i, Value v) = 0;
};

}  // namespace nibble
