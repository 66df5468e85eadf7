// A model in a safetensors file: the averaged tensors of a replica, in fp32, in the order of its layout, so that the
// data are the replica's elements one after the other.
//
// The file is written and read from front to end in parts; nothing of the model's size is held in memory. Calls block
// for as long as the disk does. Failures are values: texts that name the file. One owner, one thread at a time.

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
  std::uint64_t elements = 0;   ///< the product of its shape
  bool may_be_missing = false;  ///< a file without it is taken as well: it then begins with zeros

  friend bool operator==(const ModelTensor&, const ModelTensor&) = default;
};
using Model = std::vector<ModelTensor>;

[[nodiscard]] std::uint64_t elements_of(const Model& model);

/// XXH3-64 of bytes that come in parts, with seed 0.
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
  /// The folder must exist; see NewFile.
  [[nodiscard]] static std::expected<ModelWriter, std::string> begin(const std::filesystem::path& folder,
                                                                     const std::string& partial, const Model& model);
  /// Writes the next elements.
  [[nodiscard]] std::expected<void, std::string> append(std::span<const float> elements);
  /// Call this after the last elements. The file is then at `path`, in the same folder.
  [[nodiscard]] std::expected<void, std::string> finish(const std::filesystem::path& path, Description description);

 private:
  ModelWriter(NewFile file, std::vector<SafetensorsTensor> tensors, std::uint64_t data_at)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_at_(data_at) {}
  NewFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::uint64_t data_at_;
  std::uint64_t data_bytes_ = 0;  // bytes of data written
  RunningHash hash_;
};

class ModelReader {
 public:
  /// Reads the header only. Fails if the file is no safetensors file.
  [[nodiscard]] static std::expected<ModelReader, std::string> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// Gossamer's description of the model; nothing if another program wrote the file.
  [[nodiscard]] const std::optional<Description>& description() const { return description_; }
  /// The tensors of the file in the order of its data. Fails if one of them is not in fp32.
  [[nodiscard]] std::expected<Model, std::string> model() const;

  /// The tensors in fp32 only. Adds the number of the others to `left_out`.
  [[nodiscard]] Model model_in_float32(std::size_t& left_out) const;

  /// Makes read() give the elements of `model` in its order, with tensors found by name. Fails if the file lacks a
  /// tensor that may not be missing, or has one in another shape or not in fp32. Further tensors of the file are
  /// ignored.
  [[nodiscard]] std::expected<void, std::string> take(const Model& model);
  /// The number of tensors that the file lacks, of the model that was taken last; they are read as zeros.
  [[nodiscard]] std::size_t missing() const { return missing_; }
  /// Reads the next elements of the model.
  [[nodiscard]] std::expected<void, std::string> read(std::span<float> elements);
  /// Call this after the last elements. Fails if Gossamer wrote the file and the data are not what was written. The
  /// data are not checked if they were read in part, or not in the order of the file.
  [[nodiscard]] std::expected<void, std::string> check() const;

 private:
  struct Piece {
    std::optional<std::uint64_t> at;  ///< bytes from the start of the file; nothing: zeros, which are not in the file
    std::uint64_t bytes;
  };
  ModelReader(OldFile file, SafetensorsHeader header, std::optional<Description> description)
      : file_(std::move(file)), header_(std::move(header)), description_(std::move(description)) {}
  [[nodiscard]] std::string bad(const std::string& what) const;
  [[nodiscard]] std::string not_float32(const SafetensorsTensor& tensor) const;

  OldFile file_;
  SafetensorsHeader header_;
  std::optional<Description> description_;
  std::vector<Piece> pieces_;  // pieces still to be read, the next one at the end
  bool in_order_ = true;       // whether all of the data is read in the order of the file
  std::size_t missing_ = 0;
  RunningHash hash_;
};

}  // namespace gossamer::checkpoint
