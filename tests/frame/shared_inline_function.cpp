// What kernel_symbols.sh must refuse: an inline function with a name that other objects share.
namespace nibble {
__attribute__((noinline)) inline int shared_by_all(int x) { return x + 1; }
int user_of_shared(int x) { return shared_by_all(x); }
}  // namespace nibble
