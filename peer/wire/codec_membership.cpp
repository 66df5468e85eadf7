// Turns the messages of gossip/membership/membership_messages.hpp into a Cap'n Proto struct and back.
//
// Pure, any thread. No allocation depends on a number that was not checked: lists are refused by their length before
// they are walked. Readers throw kj::Exception on a broken pointer; decode() catches it.

#include "peer/wire/codec_parts.hpp"

namespace gossamer::peer {
namespace {

void write(const MemberRecord& record, wire::MemberRecord::Builder out) {
  out.setNode(data_of(record.node.bytes));
  out.setIncarnation(record.incarnation);
  out.setDialOnly(record.dial_only);
  if (!record.address.empty()) out.setAddress(text_of(record.address));
}
bool read(wire::MemberRecord::Reader in, MemberRecord& record) {
  record.incarnation = in.getIncarnation();
  record.dial_only = in.getDialOnly();
  return read_data(in.getNode(), record.node.bytes) &&
         read_text(in.getAddress(), max_member_address_bytes, record.address);
}

void write(const std::vector<MemberRecord>& records, capnp::List<wire::MemberRecord>::Builder out) {
  for (unsigned i = 0; i < out.size(); ++i)
    write(records[i], out[i]);
}
bool read(capnp::List<wire::MemberRecord>::Reader in, std::vector<MemberRecord>& records) {
  if (in.size() > max_shuffle_records) return false;
  records.resize(in.size());
  for (unsigned i = 0; i < in.size(); ++i) {
    if (!read(in[i], records[i])) return false;
  }
  return true;
}

void write(const Rumour& rumour, wire::Rumour::Builder out) {
  out.setClaim(static_cast<std::uint8_t>(rumour.claim));
  out.setSpread(rumour.spread);
  out.setHops(rumour.hops);
  write(rumour.subject, out.initSubject());
  if (rumour.claim == Claim::suspected) out.setAccuser(data_of(rumour.accuser.bytes));
}
bool read(wire::Rumour::Reader in, Rumour& rumour) {
  rumour.claim = static_cast<Claim>(in.getClaim());
  rumour.spread = in.getSpread();
  rumour.hops = in.getHops();
  if (!read(in.getSubject(), rumour.subject)) return false;
  return rumour.claim != Claim::suspected || read_data(in.getAccuser(), rumour.accuser.bytes);
}

/// Writes the body, with one overload for each alternative.
struct BodyWriter {
  wire::Membership::Builder out;

  void operator()(const gossamer::Ping& body) {
    auto to = out.initPing();
    to.setSequence(body.sequence);
    to.setNeighbour(body.neighbour);
  }
  void operator()(const PingRequest& body) {
    auto to = out.initPingRequest();
    to.setSequence(body.sequence);
    to.setPatienceUs(body.patience_us);
    write(body.target, to.initTarget());
  }
  void operator()(const Ack& body) { out.setAck(body.sequence); }
  void operator()(const Nack& body) { out.setNack(body.sequence); }
  void operator()(const Sync& body) {
    auto to = out.initSync();
    write(body.sender, to.initSender());
    to.setAnswerWanted(body.answer_wanted);
    auto entries = to.initEntries(size_of(body.entries));
    for (unsigned i = 0; i < entries.size(); ++i) {
      write(body.entries[i].record, entries[i].initRecord());
      entries[i].setClaim(static_cast<std::uint8_t>(body.entries[i].claim));
    }
  }
  void operator()(const Join& body) { write(body.sender, out.initJoin()); }
  void operator()(const ForwardJoin& body) {
    auto to = out.initForwardJoin();
    write(body.newcomer, to.initNewcomer());
    to.setHopsLeft(body.hops_left);
  }
  void operator()(const NeighbourRequest& body) {
    auto to = out.initNeighbourRequest();
    write(body.sender, to.initSender());
    to.setUrgent(body.urgent);
  }
  void operator()(const NeighbourReply& body) {
    auto to = out.initNeighbourReply();
    write(body.sender, to.initSender());
    to.setAccepted(body.accepted);
  }
  void operator()(const Disconnect&) { out.setDisconnect(); }
  void operator()(const Shuffle& body) {
    auto to = out.initShuffle();
    write(body.origin, to.initOrigin());
    to.setHopsLeft(body.hops_left);
    write(body.records, to.initRecords(size_of(body.records)));
  }
  void operator()(const ShuffleReply& body) { write(body.records, out.initShuffleReply(size_of(body.records))); }
  void operator()(const Leave&) { out.setLeave(); }
  void operator()(const News&) { out.setNews(); }
};

std::optional<MembershipBody> read_sync(wire::Membership::Sync::Reader in) {
  Sync sync;
  const auto entries = in.getEntries();
  if (!read(in.getSender(), sync.sender) || entries.size() > max_sync_entries) return std::nullopt;
  sync.answer_wanted = in.getAnswerWanted();
  sync.entries.resize(entries.size());
  for (unsigned i = 0; i < entries.size(); ++i) {
    if (!read(entries[i].getRecord(), sync.entries[i].record)) return std::nullopt;
    sync.entries[i].claim = static_cast<Claim>(entries[i].getClaim());
  }
  return sync;
}

/// Reads the record of a body whose other fields are set already.
template <class Body>
std::optional<MembershipBody> with(Body body, MemberRecord Body::*member, wire::MemberRecord::Reader in) {
  if (!read(in, body.*member)) return std::nullopt;
  return body;
}

std::optional<MembershipBody> read_shuffle(wire::Membership::Shuffle::Reader in) {
  Shuffle shuffle{.hops_left = in.getHopsLeft()};
  if (!read(in.getOrigin(), shuffle.origin) || !read(in.getRecords(), shuffle.records)) return std::nullopt;
  return shuffle;
}

std::optional<MembershipBody> read_body(wire::Membership::Reader in) {
  switch (in.which()) {
    case wire::Membership::NEWS:
      return News{};
    case wire::Membership::PING:
      return gossamer::Ping{in.getPing().getSequence(), in.getPing().getNeighbour()};
    case wire::Membership::PING_REQUEST: {
      const auto request = in.getPingRequest();
      return with(PingRequest{.sequence = request.getSequence(), .patience_us = request.getPatienceUs()},
                  &PingRequest::target, request.getTarget());
    }
    case wire::Membership::ACK:
      return Ack{in.getAck()};
    case wire::Membership::NACK:
      return Nack{in.getNack()};
    case wire::Membership::SYNC:
      return read_sync(in.getSync());
    case wire::Membership::JOIN:
      return with(Join{}, &Join::sender, in.getJoin());
    case wire::Membership::FORWARD_JOIN:
      return with(ForwardJoin{.hops_left = in.getForwardJoin().getHopsLeft()}, &ForwardJoin::newcomer,
                  in.getForwardJoin().getNewcomer());
    case wire::Membership::NEIGHBOUR_REQUEST:
      return with(NeighbourRequest{.urgent = in.getNeighbourRequest().getUrgent()}, &NeighbourRequest::sender,
                  in.getNeighbourRequest().getSender());
    case wire::Membership::NEIGHBOUR_REPLY:
      return with(NeighbourReply{.accepted = in.getNeighbourReply().getAccepted()}, &NeighbourReply::sender,
                  in.getNeighbourReply().getSender());
    case wire::Membership::DISCONNECT:
      return Disconnect{};
    case wire::Membership::SHUFFLE:
      return read_shuffle(in.getShuffle());
    case wire::Membership::SHUFFLE_REPLY: {
      ShuffleReply reply;
      if (!read(in.getShuffleReply(), reply.records)) return std::nullopt;
      return reply;
    }
    case wire::Membership::LEAVE:
      return Leave{};
  }
  return std::nullopt;
}

}  // namespace

void write_membership(const MembershipMessage& message, wire::Membership::Builder out) {
  out.setIncarnation(message.incarnation);
  out.setPartial(message.partial);
  auto rumours = out.initRumours(size_of(message.rumours));
  for (unsigned i = 0; i < rumours.size(); ++i)
    write(message.rumours[i], rumours[i]);
  std::visit(BodyWriter{out}, message.body);
}

bool is_known_membership(wire::Membership::Reader in) {
  return in.which() <= wire::Membership::LEAVE;  // the last of the union
}

std::optional<MembershipMessage> read_membership(wire::Membership::Reader in) {
  MembershipMessage message;
  message.incarnation = in.getIncarnation();
  message.partial = in.getPartial();
  const auto rumours = in.getRumours();
  if (rumours.size() > max_message_rumours) return std::nullopt;
  message.rumours.resize(rumours.size());
  for (unsigned i = 0; i < rumours.size(); ++i) {
    if (!read(rumours[i], message.rumours[i])) return std::nullopt;
  }
  std::optional<MembershipBody> body = read_body(in);
  if (!body) return std::nullopt;
  message.body = std::move(*body);
  return message;
}

}  // namespace gossamer::peer
