#include "peer/wire/bulk_parts.hpp"

#include <algorithm>
#include <cstring>

#include "gossip/check.hpp"

namespace gossamer::peer {
namespace {

/// The bytes [from, to) of a message's payload, frame after frame.
BulkPart slice_of(const Frames& message, std::size_t from, std::size_t to) {
  BulkPart part;
  part.offset = from;
  std::size_t start = 0;
  for (std::size_t i = 0; i < message.payload_count; ++i) {
    const Bytes& frame = message.payload[i];
    const std::size_t first = std::clamp(from, start, start + frame.size());
    const std::size_t last = std::clamp(to, start, start + frame.size());
    if (first < last) {
      part.slices[part.slice_count++] = {frame.owner, frame.data.subspan(first - start, last - first)};
    }
    start += frame.size();
  }
  return part;
}

}  // namespace

// --- to be sent ---------------------------------------------------------------------------------------------------

void BulkQueue::push(Frames message) {
  bytes_ += message.bytes();
  waiting_.push_back(std::move(message));
}

Frames BulkQueue::next(std::size_t part_bytes) const {
  GOSSAMER_CHECK(!waiting_.empty() && part_bytes > 0);
  const Frames& first = waiting_.front();
  const std::size_t total = first.payload_bytes();
  if (offset_ == 0 && (total <= part_bytes + part_bytes / 2 || first.header.size() > max_cut_header_bytes))
    return first;
  BulkPart part = slice_of(first, offset_, std::min(total, offset_ + part_bytes));
  part.message = offset_ == 0 ? number_ + 1 : number_;
  if (offset_ == 0) {
    part.header = first.header;
    for (std::size_t i = 0; i < first.payload_count; ++i)
      part.frame_bytes.push_back(static_cast<std::uint32_t>(first.payload[i].size()));
  }
  return encode(part);
}

bool BulkQueue::pop(const Frames& next) {
  GOSSAMER_CHECK(!waiting_.empty());
  const Frames& first = waiting_.front();
  const bool whole = offset_ == 0 && next.header.owner == first.header.owner;
  if (!whole) {
    if (offset_ == 0) {
      ++number_;
      bytes_ -= first.header.size();
    }
    offset_ += next.payload_bytes();
    bytes_ -= next.payload_bytes();
    if (offset_ < first.payload_bytes()) return false;
  } else {
    bytes_ -= first.bytes();
  }
  offset_ = 0;
  waiting_.pop_front();
  return true;
}

// --- received -----------------------------------------------------------------------------------------------------

void BulkAssembly::begin(const BulkPart& part) {
  number_ = part.message;
  got_ = total_ = 0;
  under_way_ = true;
  header_.assign(part.header.data.begin(), part.header.data.end());
  frames_.clear();
  for (const std::uint32_t bytes : part.frame_bytes) {
    frames_.emplace_back(bytes);
    total_ += bytes;
  }
}

std::expected<std::optional<Frames>, std::string_view> BulkAssembly::fail(std::string_view why) {
  under_way_ = false;
  frames_.clear();
  return std::unexpected(why);
}

std::expected<std::optional<Frames>, std::string_view> BulkAssembly::add(const BulkPart& part) {
  if (part.offset == 0) {
    if (under_way_) return fail("a message begins before the one in parts is complete");
    begin(part);
  }
  if (!under_way_ || part.message != number_ || part.offset != got_) return fail("a part of a message is missing");
  if (part.payload_bytes() > total_ - got_) return fail("the parts are larger than the message");
  for (std::size_t i = 0; i < part.slice_count; ++i) {
    std::span<const std::byte> slice = part.slices[i].data;
    std::size_t start = 0;
    for (gossip::FrameBuffer& buffer : frames_) {
      const std::span<std::byte> frame = buffer.bytes();
      if (got_ < start + frame.size() && !slice.empty()) {
        const std::size_t count = std::min(slice.size(), start + frame.size() - got_);
        std::memcpy(frame.data() + (got_ - start), slice.data(), count);
        got_ += count;
        slice = slice.subspan(count);
      }
      start += frame.size();
    }
  }
  if (got_ < total_) return std::nullopt;
  under_way_ = false;
  Frames message;
  message.header = Bytes::adopt(std::move(header_));
  message.payload_count = frames_.size();
  for (std::size_t i = 0; i < frames_.size(); ++i)
    message.payload[i] = std::move(frames_[i]).share();
  frames_.clear();
  header_.clear();
  return message;
}

std::size_t BulkAssembly::bytes() const {
  return under_way_ ? total_ + header_.size() : 0;
}

}  // namespace gossamer::peer
