# cmake -D OUTPUT=FILE.cpp -D FOLDER=DIR -P page_files.cmake: the files in the folder as the C++ that page_files.hpp
# declares.
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")

set(rows "")
foreach(name index.html page.css page.js)
  file(READ ${FOLDER}/${name} text)
  string(REGEX REPLACE ".*\\." "" ending ${name})
  string(REGEX REPLACE "^index.html$" "" path ${name})
  string(APPEND rows "    {\"/${path}\", \"${type_${ending}}\", R\"embedded(${text})embedded\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by tools/cmake/page_files.cmake.

#include \"daemon/report/page_files.hpp\"

namespace gossamer::daemon {
namespace {

constexpr PageFile files[] = {
${rows}};

}  // namespace

std::span<const PageFile> page_files() {
  return files;
}

}  // namespace gossamer::daemon
")
