// A model in a safetensors file: the tensors of a replica that are averaged, in fp32, in the order of its layout, so
// that the data are the replica's elements one after the other.
//
// Written and read from the front to the end, a part at a time; nothing of the size of the model is held. Blocks for as
// long as the disk does; failures are values, texts that name the file. One owner, one thread at a time.

#pragma once

#include <xxhash.h>

#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/checkpoint/description.hpp"
#include "daemon/checkpoint/file.hpp"
#include "daemon/checkpoint/safetensors.hpp"

namespace gossamer::checkpoint {

/// One tensor of a replica.
struct ModelTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;  ///< the product of its shape

  friend bool operator==(const ModelTensor&, const ModelTensor&) = default;
};
using Model = std::vector<ModelTensor>;

[[nodiscard]] std::uint64_t elements_of(const Model& model);

/// XXH3-64 of bytes that come in parts.
class RunningHash {
 public:
  RunningHash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

class ModelWriter {
 public:
  /// In a folder that exists; see NewFile.
  [[nodiscard]] static std::expected<ModelWriter, std::string> begin(const std::filesystem::path& folder,
                                                                     const std::string& partial, const Model& model);
  /// The next elements.
  [[nodiscard]] std::expected<void, std::string> append(std::span<const float> elements);
  /// After the last elements. The file is at `path` then, in the same folder.
  [[nodiscard]] std::expected<void, std::string> finish(const std::filesystem::path& path, Description description);

 private:
  ModelWriter(NewFile file, std::vector<Tensor> tensors, std::uint64_t data_at)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_at_(data_at) {}
  NewFile file_;
  std::vector<Tensor> tensors_;
  std::uint64_t data_at_;
  std::uint64_t data_bytes_ = 0;  // written
  RunningHash hash_;
};

class ModelReader {
 public:
  /// Reads the header only. Refused if the file is no safetensors file.
  [[nodiscard]] static std::expected<ModelReader, std::string> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// What Gossamer wrote about it; nothing if somebody else wrote the file.
  [[nodiscard]] const std::optional<Description>& description() const { return description_; }
  /// The tensors of the file in the order of its data. Refused if one is not in fp32.
  [[nodiscard]] std::expected<Model, std::string> model() const;

  /// The same without those that are not; how many were left out is added.
  [[nodiscard]] Model model_in_float32(std::size_t& left_out) const;

  /// Read from now on what this model needs, in its order, by the tensors' names. Refused if the file lacks one, or has
  /// it in another shape or not in fp32; what it has beside them is passed over.
  [[nodiscard]] std::expected<void, std::string> take(const Model& model);
  /// The next elements of the model.
  [[nodiscard]] std::expected<void, std::string> read(std::span<float> elements);
  /// After the last elements of a file that Gossamer wrote: refused if they are not what was written.
  [[nodiscard]] std::expected<void, std::string> check() const;

 private:
  struct Piece {
    std::uint64_t at;  ///< bytes from the start of the file
    std::uint64_t bytes;
  };
  ModelReader(OldFile file, Header header, std::optional<Description> description)
      : file_(std::move(file)), header_(std::move(header)), description_(std::move(description)) {}
  [[nodiscard]] std::string bad(const std::string& what) const;
  [[nodiscard]] std::string not_float32(const Tensor& tensor) const;

  OldFile file_;
  Header header_;
  std::optional<Description> description_;
  std::vector<Piece> pieces_;  // still to be read, the next one last
  bool in_order_ = true;       // all of the data, as it stands in the file
  RunningHash hash_;
};

}  // namespace gossamer::checkpoint
