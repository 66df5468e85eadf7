#include "peer/wire/codec.hpp"

#include <algorithm>
#include <cstring>

#include "gossip/check.hpp"
#include "peer/wire/codec_parts.hpp"
#include "peer/wire/validate.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t word_bytes = sizeof(capnp::word);
constexpr std::size_t scratch_words = 128;  // most headers fit: no allocation by the builder
constexpr int max_nesting = 8;

// ---- gossip's messages to header and payload -------------------------------------------------------------------

void write_job(const JobKey& job, wire::Job::Builder out) {
  out.setNameHash(job.name_hash);
  out.setLayoutHash(job.layout_hash);
}
JobKey read_job(wire::Job::Reader in) {
  return {in.getNameHash(), in.getLayoutHash()};
}

void write_age(const Age& age, wire::Age::Builder out) {
  out.setSamples(age.samples);
  out.setCadence(age.cadence);
}
Age read_age(wire::Age::Reader in) {
  return {in.getSamples(), in.getCadence()};
}

template <class Builder>
void write_tracer(const std::optional<TracerValues>& tracer, Builder out) {
  if (!tracer) return;
  out.setTracerRound(tracer->round);
  auto values = out.initTracer(tracer_values);
  for (unsigned i = 0; i < values.size(); ++i)
    values.set(i, tracer->values[i]);
}
/// A list with another number of values comes from a later build, and is ignored.
template <class Reader>
std::optional<TracerValues> read_tracer(Reader in) {
  const auto values = in.getTracer();
  if (in.getTracerRound() == 0 || values.size() != tracer_values) return std::nullopt;
  TracerValues tracer{.round = in.getTracerRound()};
  for (unsigned i = 0; i < values.size(); ++i)
    tracer.values[i] = values[i];
  return tracer;
}

void write(const ExchangeRequest& request, wire::Header::Builder header, Frames& frames) {
  auto out = header.initExchangeRequest();
  out.setCounter(request.counter);
  write_job(request.job, out.initJob());
  out.setFragment(request.fragment);
  out.setCodec(static_cast<std::uint8_t>(request.codec));
  out.setMinShift(request.min_shift);
  out.setPushes(request.pushes);
  out.setSeed(request.seed);
  out.setClock(request.clock);
  write_age(request.age, out.initAge());
  out.setClip(request.clip);
  out.setWeight(request.weight);
  out.setUsual(request.usual);
  out.setBlockCount(request.block_count);
  write_tracer(request.tracer, out);
  frames.payload = {request.blocks, request.side, request.values};
  frames.payload_count = 3;
}
std::optional<Message> read(wire::ExchangeRequest::Reader in, const Frames& frames) {
  if (frames.payload_count != 3) return std::nullopt;
  ExchangeRequest request;
  request.counter = in.getCounter();
  request.job = read_job(in.getJob());
  request.fragment = in.getFragment();
  request.codec = static_cast<Codec>(in.getCodec());
  request.min_shift = in.getMinShift();
  request.pushes = in.getPushes();
  request.seed = in.getSeed();
  request.clock = in.getClock();
  request.age = read_age(in.getAge());
  request.clip = in.getClip();
  request.weight = in.getWeight();
  request.usual = in.getUsual();
  request.block_count = in.getBlockCount();
  request.tracer = read_tracer(in);
  request.blocks = frames.payload[0];
  request.side = frames.payload[1];
  request.values = frames.payload[2];
  return request;
}

void write(const ExchangeReply& reply, wire::Header::Builder header, Frames& frames) {
  auto out = header.initExchangeReply();
  out.setCounter(reply.counter);
  write_job(reply.job, out.initJob());
  out.setFragment(reply.fragment);
  out.setStatus(static_cast<std::uint8_t>(reply.status));
  out.setReason(static_cast<std::uint8_t>(reply.reason));
  out.setCodec(static_cast<std::uint8_t>(reply.codec));
  out.setShift(reply.shift);
  out.setClock(reply.clock);
  write_age(reply.age, out.initAge());
  out.setBlockCount(reply.block_count);
  out.setLimited(reply.limited);
  if (!reply.halvings.empty()) out.setHalvings(data_of(reply.halvings.data));
  write_tracer(reply.tracer, out);
  if (reply.status != ReplyStatus::done) return;
  frames.payload = {reply.wide, reply.asked, reply.differences};
  frames.payload_count = 3;
}
std::optional<Message> read(wire::ExchangeReply::Reader in, const Frames& frames) {
  ExchangeReply reply;
  reply.counter = in.getCounter();
  reply.job = read_job(in.getJob());
  reply.fragment = in.getFragment();
  reply.status = static_cast<ReplyStatus>(in.getStatus());
  reply.reason = static_cast<RefuseReason>(in.getReason());
  reply.codec = static_cast<Codec>(in.getCodec());
  reply.shift = in.getShift();
  reply.clock = in.getClock();
  reply.age = read_age(in.getAge());
  reply.block_count = in.getBlockCount();
  reply.limited = in.getLimited();
  std::vector<std::byte> halvings;
  if (!read_bytes(in.getHalvings(), max_fragment_blocks, halvings)) return std::nullopt;
  if (!halvings.empty()) reply.halvings = Bytes::adopt(std::move(halvings));
  reply.tracer = read_tracer(in);
  if (frames.payload_count != (reply.status == ReplyStatus::done ? 3u : 0u)) return std::nullopt;
  reply.wide = frames.payload[0];
  reply.asked = frames.payload[1];
  reply.differences = frames.payload[2];
  return reply;
}

void write(const ExchangeAck& ack, wire::Header::Builder header, Frames&) {
  auto out = header.initExchangeAck();
  out.setCounter(ack.counter);
  out.setOutcome(static_cast<std::uint8_t>(ack.outcome));
}
std::optional<Message> read(wire::ExchangeAck::Reader in, const Frames& frames) {
  if (frames.payload_count != 0) return std::nullopt;
  return ExchangeAck{in.getCounter(), static_cast<Outcome>(in.getOutcome())};
}

void write(const ExchangeInquiry& inquiry, wire::Header::Builder header, Frames&) {
  auto out = header.initExchangeInquiry();
  out.setCounter(inquiry.counter);
  write_job(inquiry.job, out.initJob());
  out.setFragment(inquiry.fragment);
}
std::optional<Message> read(wire::ExchangeInquiry::Reader in, const Frames& frames) {
  if (frames.payload_count != 0) return std::nullopt;
  return ExchangeInquiry{in.getCounter(), read_job(in.getJob()), in.getFragment()};
}

void write_settings(const JobSettings& settings, wire::JobInfo::Builder info) {
  if (settings.version == 0) return;
  auto out = info.initSettings();
  out.setVersion(settings.version);
  out.setAuthor(data_of(settings.author.bytes));
  auto values = out.initValues(size_of(settings.values));
  for (unsigned i = 0; i < values.size(); ++i) {
    values[i].setName(text_of(settings.values[i].name));
    values[i].setValue(text_of(settings.values[i].value));
  }
  if (settings.signature) out.setSignature(data_of(*settings.signature));
}
std::optional<JobSettings> read_settings(wire::JobSettings::Reader in) {
  JobSettings settings{.version = in.getVersion()};
  if (settings.version == 0) return settings;
  if (!read_data(in.getAuthor(), settings.author.bytes) || in.getValues().size() > max_job_settings ||
      !read_optional(in.getSignature(), settings.signature)) {
    return std::nullopt;
  }
  for (const auto value : in.getValues()) {
    JobSetting& read = settings.values.emplace_back();
    if (!read_text(value.getName(), max_setting_name_bytes, read.name) ||
        !read_text(value.getValue(), max_setting_value_bytes, read.value)) {
      return std::nullopt;
    }
  }
  return settings;
}

void write(const JobInfo& info, wire::Header::Builder header, Frames&) {
  auto out = header.initJobInfo();
  write_job(info.job, out.initJob());
  out.setName(text_of(info.name));
  out.setState(static_cast<std::uint8_t>(info.state));
  out.setClock(info.clock);
  out.setElements(info.elements);
  out.setFragments(info.fragments);
  out.setFragmentElements(info.fragment_elements);
  out.setFinishing(static_cast<std::uint8_t>(info.finishing));
  out.setFirstExchange(info.first_exchange);
  out.setQuarantined(info.quarantined);
  out.setKeeps(info.keeps);
  out.setTrainers(info.trainers);
  if (info.keeps) out.setFirstTrainer(data_of(info.first_trainer.bytes));
  write_settings(info.settings, out);
  if (info.logged.empty()) return;
  auto logged = out.initLogged(size_of(info.logged));
  for (unsigned i = 0; i < logged.size(); ++i) {
    logged[i].setName(text_of(info.logged[i].name));
    logged[i].setValue(info.logged[i].value);
  }
}
std::optional<Message> read(wire::JobInfo::Reader in, const Frames& frames) {
  JobInfo info;
  if (frames.payload_count != 0 || !read_text(in.getName(), max_job_name_bytes, info.name)) return std::nullopt;
  info.job = read_job(in.getJob());
  info.state = static_cast<ReplicaState>(in.getState());
  info.clock = in.getClock();
  info.elements = in.getElements();
  info.fragments = in.getFragments();
  info.fragment_elements = in.getFragmentElements();
  info.finishing = static_cast<Finishing>(in.getFinishing());
  info.first_exchange = in.getFirstExchange();
  info.quarantined = in.getQuarantined();
  info.keeps = in.getKeeps();
  info.trainers = in.getTrainers();
  if (info.keeps && !read_data(in.getFirstTrainer(), info.first_trainer.bytes)) return std::nullopt;
  auto settings = read_settings(in.getSettings());
  if (!settings || in.getLogged().size() > max_logged) return std::nullopt;
  info.settings = std::move(*settings);
  for (const auto value : in.getLogged()) {
    LoggedValue& read = info.logged.emplace_back();
    if (!read_text(value.getName(), max_logged_name_bytes, read.name)) return std::nullopt;
    read.value = value.getValue();
  }
  return info;
}

void write(const JobQuery& query, wire::Header::Builder header, Frames&) {
  write_job(query.job, header.initJobQuery().initJob());
}
std::optional<Message> read(wire::JobQuery::Reader in, const Frames& frames) {
  if (frames.payload_count != 0) return std::nullopt;
  return JobQuery{read_job(in.getJob())};
}

void write(const LayoutQuery& query, wire::Header::Builder header, Frames&) {
  auto out = header.initLayoutQuery();
  write_job(query.job, out.initJob());
  out.setFirstTensor(query.first_tensor);
}
std::optional<Message> read(wire::LayoutQuery::Reader in, const Frames& frames) {
  if (frames.payload_count != 0) return std::nullopt;
  return LayoutQuery{read_job(in.getJob()), in.getFirstTensor()};
}

void write(const LayoutReply& reply, wire::Header::Builder header, Frames&) {
  auto out = header.initLayoutReply();
  write_job(reply.job, out.initJob());
  out.setFragmentElements(reply.fragment_elements);
  out.setTensorCount(reply.tensor_count);
  out.setFirstTensor(reply.first_tensor);
  auto tensors = out.initTensors(size_of(reply.tensors));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    const LayoutTensor& tensor = reply.tensors[i];
    tensors[i].setName(text_of(tensor.name));
    tensors[i].setDtype(tensor.dtype);
    tensors[i].setRole(tensor.role);
    auto shape = tensors[i].initShape(size_of(tensor.shape));
    for (unsigned d = 0; d < shape.size(); ++d)
      shape.set(d, tensor.shape[d]);
  }
}
std::optional<Message> read(wire::LayoutReply::Reader in, const Frames& frames) {
  if (frames.payload_count != 0 || in.getTensors().size() > max_told_tensors) return std::nullopt;
  LayoutReply reply{.job = read_job(in.getJob()),
                    .fragment_elements = in.getFragmentElements(),
                    .tensor_count = in.getTensorCount(),
                    .first_tensor = in.getFirstTensor()};
  for (const auto tensor : in.getTensors()) {
    const auto shape = tensor.getShape();
    LayoutTensor& read = reply.tensors.emplace_back(LayoutTensor{.dtype = tensor.getDtype(), .role = tensor.getRole()});
    if (shape.size() > max_tensor_dimensions || !read_text(tensor.getName(), max_tensor_name_bytes, read.name))
      return std::nullopt;
    for (const std::uint64_t size : shape)
      read.shape.push_back(size);
  }
  return reply;
}

void write(const PullRequest& request, wire::Header::Builder header, Frames&) {
  auto out = header.initPullRequest();
  write_job(request.job, out.initJob());
  out.setFragment(request.fragment);
}
std::optional<Message> read(wire::PullRequest::Reader in, const Frames& frames) {
  if (frames.payload_count != 0) return std::nullopt;
  return PullRequest{read_job(in.getJob()), in.getFragment()};
}

void write(const PullReply& reply, wire::Header::Builder header, Frames& frames) {
  auto out = header.initPullReply();
  write_job(reply.job, out.initJob());
  out.setFragment(reply.fragment);
  out.setReason(static_cast<std::uint8_t>(reply.reason));
  out.setClock(reply.clock);
  out.setHash(reply.hash);
  if (!reply.cursor.empty()) out.setCursor(data_of(reply.cursor));
  frames.payload[0] = reply.values;
  frames.payload_count = 1;
}
std::optional<Message> read(wire::PullReply::Reader in, const Frames& frames) {
  if (frames.payload_count != 1) return std::nullopt;
  PullReply reply;
  reply.job = read_job(in.getJob());
  reply.fragment = in.getFragment();
  reply.reason = static_cast<RefuseReason>(in.getReason());
  reply.clock = in.getClock();
  reply.hash = in.getHash();
  reply.values = frames.payload[0];
  if (!read_bytes(in.getCursor(), max_cursor_bytes, reply.cursor)) return std::nullopt;
  return reply;
}

void write(const Summaries& summaries, wire::Header::Builder header, Frames&) {
  auto nodes = header.initSummaries().initNodes(size_of(summaries.nodes));
  for (unsigned i = 0; i < nodes.size(); ++i) {
    const NodeSummary& summary = summaries.nodes[i];
    auto out = nodes[i];
    out.setNode(data_of(summary.node.bytes));
    out.setIncarnation(summary.incarnation);
    out.setNumber(summary.number);
    out.setAgeMs(summary.age_ms);
    out.setName(text_of(summary.name));
    out.setNeighbours(summary.neighbours);
    out.setGoodputBytesS(summary.goodput_bytes_s);
    auto jobs = out.initJobs(size_of(summary.jobs));
    for (unsigned j = 0; j < jobs.size(); ++j) {
      const JobSummary& job = summary.jobs[j];
      jobs[j].setName(text_of(job.name));
      jobs[j].setState(static_cast<std::uint8_t>(job.state));
      jobs[j].setClock(job.clock);
      jobs[j].setConsensus(job.consensus);
      jobs[j].setTracerRound(job.tracer_round);
      jobs[j].setMixingPerS(job.mixing_per_s);
    }
    auto linked = out.initLinked(size_of(summary.linked));
    for (unsigned j = 0; j < linked.size(); ++j)
      linked.set(j, summary.linked[j]);
  }
}
std::optional<NodeSummary> read(wire::NodeSummary::Reader in) {
  const auto jobs = in.getJobs();
  NodeSummary summary;
  if (!read_data(in.getNode(), summary.node.bytes) || jobs.size() > max_summary_jobs ||
      in.getLinked().size() > max_summary_links || !read_text(in.getName(), max_summary_name_bytes, summary.name)) {
    return std::nullopt;
  }
  summary.incarnation = in.getIncarnation();
  summary.number = in.getNumber();
  summary.age_ms = in.getAgeMs();
  summary.neighbours = in.getNeighbours();
  summary.goodput_bytes_s = in.getGoodputBytesS();
  for (const auto job : jobs) {
    JobSummary& read = summary.jobs.emplace_back();
    if (!read_text(job.getName(), max_job_name_bytes, read.name)) return std::nullopt;
    read.state = static_cast<ReplicaState>(job.getState());
    read.clock = job.getClock();
    read.consensus = job.getConsensus();
    read.tracer_round = job.getTracerRound();
    read.mixing_per_s = job.getMixingPerS();
  }
  for (const std::uint32_t node : in.getLinked())
    summary.linked.push_back(node);
  return summary;
}
std::optional<Message> read(wire::Summaries::Reader in, const Frames& frames) {
  const auto nodes = in.getNodes();
  if (frames.payload_count != 0 || nodes.size() > max_summaries) return std::nullopt;
  Summaries summaries;
  for (const auto node : nodes) {
    auto summary = read(node);
    if (!summary) return std::nullopt;
    summaries.nodes.push_back(std::move(*summary));
  }
  return summaries;
}

void write(const gossip::AverageNote& note, wire::Header::Builder header, Frames&) {
  write_average(note, header.initAverage());
}
std::optional<Message> read(wire::Average::Reader in, const Frames& frames) {
  return frames.payload_count == 0 ? read_average(in) : std::optional<Message>();
}

void write(const gossip::AverageValues& values, wire::Header::Builder header, Frames& frames) {
  write_average(values, header.initAverageValues());
  frames.payload[0] = values.values;
  frames.payload_count = 1;
}
std::optional<Message> read(wire::AverageValues::Reader in, const Frames& frames) {
  auto values = read_average(in);
  if (frames.payload_count != 1 || !values) return std::nullopt;
  values->values = frames.payload[0];
  return values;
}

void write(const BulkPart& part, wire::Header::Builder header, Frames& frames) {
  auto out = header.initBulkPart();
  out.setMessage(part.message);
  out.setOffset(part.offset);
  if (!part.frame_bytes.empty()) {
    auto sizes = out.initFrameBytes(size_of(part.frame_bytes));
    for (unsigned i = 0; i < sizes.size(); ++i)
      sizes.set(i, part.frame_bytes[i]);
    out.setHeader(data_of(part.header.data));
  }
  frames.payload = part.slices;
  frames.payload_count = part.slice_count;
}
std::optional<BulkPart> read(wire::BulkPart::Reader in, const Frames& frames) {
  const auto sizes = in.getFrameBytes();
  std::vector<std::byte> header;
  if (sizes.size() > max_payload_frames || !read_bytes(in.getHeader(), max_cut_header_bytes, header))
    return std::nullopt;
  BulkPart part;
  part.message = in.getMessage();
  part.offset = in.getOffset();
  for (const std::uint32_t bytes : sizes)
    part.frame_bytes.push_back(bytes);
  part.header = Bytes::adopt(std::move(header));
  part.slices = frames.payload;
  part.slice_count = frames.payload_count;
  return part;
}

// ---- the header as bytes -----------------------------------------------------------------------------------------

Bytes bytes_of(capnp::MessageBuilder& builder) {
  auto words = std::make_shared<kj::Array<capnp::word>>(capnp::messageToFlatArray(builder));
  GOSSAMER_CHECK(words->size() * word_bytes <= max_header_bytes);
  const auto view = std::as_bytes(std::span(words->begin(), words->size()));
  return {std::move(words), view};
}

/// Frames with what `write` puts into the header and the payload.
template <class Write>
Frames framed(Write&& write) {
  capnp::word scratch[scratch_words]{};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(scratch, scratch_words));
  Frames frames;
  write(builder.initRoot<wire::Header>(), frames);
  frames.header = bytes_of(builder);
  return frames;
}

std::expected<Packet, DecodeError> malformed(std::string_view why) {
  return std::unexpected(DecodeError{DecodeError::Kind::malformed, std::string(why)});
}

template <class Read>
std::expected<Packet, DecodeError> checked(std::optional<Read>&& message) {
  if (!message) return malformed("a field or the number of frames is wrong");
  if (const auto fault = fault_of(*message)) return malformed(*fault);
  return Packet(std::move(*message));
}

std::expected<Packet, DecodeError> packet_of(wire::Header::Reader header, const Frames& frames) {
  switch (header.which()) {
    case wire::Header::HELLO:
    case wire::Header::WELCOME:
    case wire::Header::REJECTED:
    case wire::Header::PING:
    case wire::Header::PONG:
    case wire::Header::GOODBYE:
    case wire::Header::DENIALS:
    case wire::Header::KEY_RING:
    case wire::Header::INVITATION_CLAIM:
    case wire::Header::INVITATION_GRANT:
    case wire::Header::BULK_ACK:
    case wire::Header::BULK_OFFER:
    case wire::Header::CERTIFICATES:
    case wire::Header::DEPUTIES:
      if (frames.payload_count != 0) return malformed("payload where none belongs");
      return checked(read_control(header));
    case wire::Header::EXCHANGE_REQUEST:
      return checked(read(header.getExchangeRequest(), frames));
    case wire::Header::EXCHANGE_REPLY:
      return checked(read(header.getExchangeReply(), frames));
    case wire::Header::EXCHANGE_ACK:
      return checked(read(header.getExchangeAck(), frames));
    case wire::Header::EXCHANGE_INQUIRY:
      return checked(read(header.getExchangeInquiry(), frames));
    case wire::Header::JOB_INFO:
      return checked(read(header.getJobInfo(), frames));
    case wire::Header::JOB_QUERY:
      return checked(read(header.getJobQuery(), frames));
    case wire::Header::LAYOUT_QUERY:
      return checked(read(header.getLayoutQuery(), frames));
    case wire::Header::LAYOUT_REPLY:
      return checked(read(header.getLayoutReply(), frames));
    case wire::Header::PULL_REQUEST:
      return checked(read(header.getPullRequest(), frames));
    case wire::Header::PULL_REPLY:
      return checked(read(header.getPullReply(), frames));
    case wire::Header::MEMBERSHIP: {
      if (frames.payload_count != 0) return malformed("payload where none belongs");
      if (!is_known_membership(header.getMembership())) break;
      auto message = read_membership(header.getMembership());
      if (!message || !valid(*message)) return malformed("a membership message outside its bounds");
      return Packet(std::move(*message));
    }
    case wire::Header::SUMMARIES:
      return checked(read(header.getSummaries(), frames));
    case wire::Header::AVERAGE:
      if (!is_known_average(header.getAverage())) break;
      return checked(read(header.getAverage(), frames));
    case wire::Header::AVERAGE_VALUES:
      return checked(read(header.getAverageValues(), frames));
    case wire::Header::BULK_PART:
      return checked(read(header.getBulkPart(), frames));
  }
  return std::unexpected(DecodeError{DecodeError::Kind::unknown, "a kind of message this version does not know"});
}

std::expected<Packet, DecodeError> decode_words(kj::ArrayPtr<const capnp::word> words, const Frames& frames) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * max_header_bytes / word_bytes;  // lists of structs may be walked twice
  options.nestingLimit = max_nesting;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    return packet_of(reader.getRoot<wire::Header>(), frames);
  } catch (const kj::Exception&) {
    return malformed("the header is not a sound Cap'n Proto message");
  }
}

}  // namespace

std::size_t Frames::payload_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < payload_count; ++i)
    bytes += payload[i].size();
  return bytes;
}

Frames encode(const ControlMessage& message) {
  GOSSAMER_CHECK(!fault_of(message));
  return framed([&](wire::Header::Builder header, Frames&) { write_control(message, header); });
}
Frames encode(const Message& message) {
  GOSSAMER_CHECK(!fault_of(message));
  return framed([&](wire::Header::Builder header, Frames& frames) {
    std::visit([&](const auto& m) { write(m, header, frames); }, message);
  });
}
Frames encode(const MembershipMessage& message) {
  GOSSAMER_CHECK(valid(message));
  return framed([&](wire::Header::Builder header, Frames&) { write_membership(message, header.initMembership()); });
}
Frames encode(const BulkPart& part) {
  GOSSAMER_CHECK(!fault_of(part));
  return framed([&](wire::Header::Builder header, Frames& frames) { write(part, header, frames); });
}

std::expected<Packet, DecodeError> decode(const Frames& frames) {
  if (frames.header.empty() || frames.header.size() > max_header_bytes || frames.header.size() % word_bytes != 0) {
    return malformed("the header frame has a wrong size");
  }
  for (std::size_t i = 0; i < frames.payload_count; ++i) {
    if (frames.payload[i].size() > max_payload_frame_bytes) return malformed("a payload frame is too large");
  }
  const std::size_t count = frames.header.size() / word_bytes;
  if (reinterpret_cast<std::uintptr_t>(frames.header.data.data()) % alignof(capnp::word) == 0) {
    return decode_words({reinterpret_cast<const capnp::word*>(frames.header.data.data()), count}, frames);
  }
  std::vector<capnp::word> aligned(count);
  std::memcpy(static_cast<void*>(aligned.data()), frames.header.data.data(), frames.header.size());
  return decode_words({aligned.data(), count}, frames);
}

Channel channel_of(const Message& message) {
  const bool bulk = std::holds_alternative<ExchangeRequest>(message) ||
                    std::holds_alternative<ExchangeReply>(message) || std::holds_alternative<PullRequest>(message) ||
                    std::holds_alternative<PullReply>(message) ||
                    std::holds_alternative<gossip::AverageValues>(message);
  return bulk ? Channel::bulk : Channel::control;
}

}  // namespace gossamer::peer
