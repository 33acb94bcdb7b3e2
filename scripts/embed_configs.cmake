# Writes OUTPUT, a C++ file that holds the files FILES (relative to ROOT) as string literals, so that the program finds
# its configurations without the source tree.  Usage: cmake -DROOT=... -DFILES=a,b -DOUTPUT=... -P embed_configs.cmake
string(REPLACE "," ";" files "${FILES}")
set(text "// Made by scripts/embed_configs.cmake from configs/.\n#include \"io/packaged.h\"\nnamespace nibble {\nconst PackagedFile packaged_files[] = {\n")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" body)
  string(APPEND text "{\"${file}\", R\"nibble(${body})nibble\"},\n")
endforeach()
string(APPEND text "};\nconst int packaged_file_count = sizeof(packaged_files) / sizeof(packaged_files[0]);\n}\n")
file(WRITE "${OUTPUT}" "${text}")
