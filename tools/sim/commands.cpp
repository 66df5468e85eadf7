#include "tools/sim/commands.hpp"

#include <fstream>

namespace gossamer::sim {

void write_file(const std::string& path, const std::string& contents) {
  std::ofstream file(path, std::ios::binary);
  file << contents;
  if (!file.flush()) throw UsageError("cannot write " + path);
}

}  // namespace gossamer::sim
