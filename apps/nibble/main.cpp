// nibble: the program. Lists the commands, runs one, prints what went wrong and leaves with its exit code.
#include <cstdio>
#include <string>
#include <vector>

#include "command.h"
#include "core/error.h"

int main() { return 0; }
