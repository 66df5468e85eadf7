// The work of one exchange: the initiator encodes a request, the responder answers, the initiator concludes.
//
// Each task is a value that holds all it needs except the fragment's memory. run() has the fragment's device do the
// arithmetic (gossip/exchange/device.hpp), on a worker thread while the fragment is held for it. Replica uses the
// result.

#pragma once

#include "gossip/exchange/device.hpp"
#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/exchange/mixing.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/exchange/push.hpp"
#include "gossip/exchange/steps.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// The parts of a fragment that a task may use while it holds the fragment.
struct HeldFragment {
  FragmentBuffers& buffers;
  BlockSteps& steps;
  OuterState* outer = nullptr;              ///< only OuterTask looks at it
  PushState* push = nullptr;                ///< needed where a task pushes
  const Device& device = buffers.device();  ///< holds the buffers and computes on them
};

/// Sums over an exchange's blocks, for mixing, metrics and the link's factor.
struct ExchangeMeasure {
  std::uint32_t blocks = 0;
  std::uint32_t wide_blocks = 0;
  std::uint32_t coarse_blocks = 0;  ///< wide blocks that were refused for their step, not out of range
  float ratio = 0;                  ///< observed over expected disagreement; 0: nothing to compare
  double mean_abs = 0;              ///< mean |y_j − y_i| over the blocks in range
  double distance = 0;              ///< ‖y_j − y_i‖; blocks out of range are taken to be like those in range
  double codec_error = 0;           ///< bound on what quantisation adds, over ‖s·D‖, both as norms: 0 (f32) to 1
  double coarsest_step = 0;         ///< of the blocks in range, if any; smaller differences may go unseen. f32: 0
  double magnitude = 0;             ///< root mean square of y, from a sample of its blocks; 0: not available
  bool telling = false;             ///< at least half of the blocks are in range, so the distance is reliable
  bool limited = false;             ///< the responder scaled the differences down: the distance is larger
};

/// Numbers from 2^119 on need the coarsest step, and count as infinite.
inline constexpr float largest_averaged = 0x1p+119F;
static_assert(max_step_exponent - 1 + index_bits == 119);
/// A root mean square difference no larger than the finest step counts as none.
inline constexpr double finest_step = 0x1p-100;
static_assert(min_step_exponent == -100);

/// ‖y_j − y_i‖ over ‖y‖: the distance of two replicas, without a unit. 0 if they are equal, or differ by no more than
/// the finest step can show; infinite if y is zero.
[[nodiscard]] double relative_distance(const ExchangeMeasure& measure);
/// ‖y‖ over the blocks that were exchanged.
[[nodiscard]] double values_norm(const ExchangeMeasure& measure);

/// Encodes the initiator's side.
struct EncodeTask {
  ExchangeRequest request = {};            ///< complete but for clip, block_count, blocks, side and values
  std::vector<std::uint32_t> blocks = {};  ///< ascending; empty: all
  std::vector<std::int8_t> exponents =
      {};  ///< wanted steps for `blocks` (from a reply), taken up to the limits; empty: the node's own estimate
  float range = default_range;
  float factor = 1;
  Clip clip = {};
  std::optional<PushRule> push = {};  ///< the blocks are pushed to the fragment's owner

  struct Result {
    bool finite = false;  ///< false: the node's own fragment holds NaN, infinity or numbers beyond largest_averaged;
                          ///< nothing else is meaningful
    bool pushed = false;  ///< the values are what PushRule asks for; false if they are y
    ExchangeRequest request;
    std::vector<std::uint32_t> blocks;   ///< the blocks included
    std::vector<std::int8_t> exponents;  ///< the exponents used; for f32 the limits
    float factor = 1;
  };
  [[nodiscard]] Result run(HeldFragment fragment) &&;
};

/// The data for undoing a responder's half, kept beside its reply.
struct AnsweredHalf {
  int shift = 1;      ///< the responder's: another than the reply's where replicas weigh by their samples
  Bytes blocks = {};  ///< as in the request
  std::vector<std::int8_t> exponents = {};  ///< the steps of its blocks; empty: nothing was committed
};

/// Answers a request: decodes it, chooses the weight, and commits the responder's half.
struct AnswerTask {
  ExchangeRequest request;
  int shift = 1;  ///< gives the largest weight that budget and ages allow; noise and clipping may raise the shift
  float range = default_range;
  float factor = 1;
  Clip clip = {};
  Witness witness = {};
  WeightShifts weights = {};
  bool only_gives = false;  ///< the initiator takes y over, and the responder commits nothing

  struct Result {
    bool commit = false;  ///< the responder's half is written; FragmentBuffers::finish_commit() makes it count.
                          ///< False with a reply `done`: the two ends agree, or it only gives
    bool own_not_finite = false;
    ExchangeReply reply;  ///< complete but for clock and age
    AnsweredHalf half;
    ExchangeMeasure measure;
  };
  [[nodiscard]] Result run(HeldFragment fragment) &&;
};

/// Commits the initiator's half of an exchange that the responder has done.
struct ConcludeTask {
  ExchangeReply reply;
  std::vector<std::uint32_t> blocks;
  std::vector<std::int8_t> exponents;
  float factor = 1;
  float clip = 0;  ///< as sent in the request
  Witness witness = {};
  std::optional<PushRule> push = {};  ///< with EncodeTask::Result::pushed

  struct Result {
    bool accepted = false;  ///< false: differences that are not finite, or beyond what the request allowed
    bool commit = false;    ///< as in AnswerTask
    int shift = 1;
    bool took_all = false;  ///< for a push: the responder has taken all of it, except the blocks out of range
    ExchangeMeasure measure;
    std::vector<std::uint32_t> wide;          ///< blocks that were out of range
    std::vector<std::int8_t> wide_exponents;  ///< the steps that the responder asked for on them
  };
  [[nodiscard]] Result run(HeldFragment fragment) &&;
};

/// Commits the opposite of a responder's half, because the initiator will never commit the other half.
struct UndoTask {
  std::uint32_t place = 0;  ///< see ReplyCache
  ExchangeReply reply;
  AnsweredHalf half;

  struct Result {
    bool commit = false;  ///< as in AnswerTask; false: the device failed, or has no room
  };
  [[nodiscard]] Result run(HeldFragment fragment) const;
};

/// Looks whether a fragment in quarantine is finite again.
struct LookTask {
  struct Result {
    bool finite = false;  ///< false also if the device failed
  };
  [[nodiscard]] Result run(HeldFragment fragment) const;
};

/// True if a request's block list and frames fit a fragment of `fragment_blocks` blocks.
[[nodiscard]] bool fits(const ExchangeRequest& request, std::size_t fragment_blocks);
/// True if a reply fits the request it answers.
[[nodiscard]] bool fits(const ExchangeReply& reply, const ExchangeRequest& request);

/// Indices of the set bits; all `fragment_blocks` indices if the bitmap is empty.
[[nodiscard]] std::vector<std::uint32_t> blocks_of(std::span<const std::byte> bitmap, std::size_t fragment_blocks);
/// The bitmap of `blocks` (ascending); empty if it would contain every block.
[[nodiscard]] Bytes bitmap_of(std::span<const std::uint32_t> blocks, std::size_t fragment_blocks);

}  // namespace gossamer::gossip
