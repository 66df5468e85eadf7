#include "gossip/overloaded.hpp"
#include "peer/wire/codec_parts.hpp"

namespace gossamer::peer {
namespace {

using namespace gossip;

std::uint64_t integer_of(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i)
    value = value << 8 | bytes[i];
  return value;
}
void bytes_of(std::uint64_t value, std::uint8_t* bytes) {
  for (int i = 0; i < 8; ++i)
    bytes[i] = static_cast<std::uint8_t>(value >> 8 * i);
}

void write(const Participant& one, wire::Participant::Builder out) {
  out.setNodeLow(integer_of(one.node.bytes.data()));
  out.setNodeHigh(integer_of(one.node.bytes.data() + 8));
  out.setLife(one.life);
}
Participant read(wire::Participant::Reader in) {
  Participant one{.life = in.getLife()};
  bytes_of(in.getNodeLow(), one.node.bytes.data());
  bytes_of(in.getNodeHigh(), one.node.bytes.data() + 8);
  return one;
}

void write(const Ballot& ballot, wire::Ballot::Builder out) {
  out.setNumber(ballot.number);
  write(ballot.conductor, out.initConductor());
}
Ballot read(wire::Ballot::Reader in) {
  return {in.getNumber(), read(in.getConductor())};
}

void write(const FoundingId& founding, wire::Founding::Builder out) {
  out.setAt(founding.at_us);
  write(founding.by, out.initBy());
}
FoundingId read(wire::Founding::Reader in) {
  return {in.getAt(), read(in.getBy())};
}

void write(const Contribution& contribution, wire::Contribution::Builder out) {
  write(contribution.from, out.initFrom());
  out.setNumber(contribution.number);
}
Contribution read(wire::Contribution::Reader in) {
  return {read(in.getFrom()), in.getNumber()};
}

template <class Item>
void write_list(const std::vector<Item>& items, auto out) {
  for (unsigned i = 0; i < out.size(); ++i)
    write(items[i], out[i]);
}
/// False if the list is too long.
template <class Item>
bool read_list(auto in, std::size_t most, std::vector<Item>& out) {
  if (in.size() > most) return false;
  for (const auto item : in)
    out.push_back(read(item));
  return true;
}

void write(const RoundPlan& plan, wire::RoundPlan::Builder out) {
  write(plan.made_at, out.initMadeAt());
  write_list(plan.contributions, out.initContributions(size_of(plan.contributions)));
  write_list(plan.members, out.initMembers(size_of(plan.members)));
  write_list(plan.voters, out.initVoters(size_of(plan.voters)));
}
bool read(wire::RoundPlan::Reader in, RoundPlan& plan) {
  plan.made_at = read(in.getMadeAt());
  return read_list(in.getContributions(), max_average_members, plan.contributions) &&
         read_list(in.getMembers(), max_average_members, plan.members) &&
         read_list(in.getVoters(), max_average_members, plan.voters);
}

void write(const RoundPart& part, wire::RoundPart::Builder out) {
  out.setKind(static_cast<std::uint8_t>(part.kind));
  write(part.made_at, out.initMadeAt());
  out.setFragment(part.fragment);
}
RoundPart read(wire::RoundPart::Reader in) {
  return {static_cast<RoundPart::Kind>(in.getKind()), read(in.getMadeAt()), in.getFragment()};
}

void write_ready(const RoundReady& ready, auto out) {
  out.setContributes(ready.contribution.has_value());
  out.setNumber(ready.contribution.value_or(0));
  out.setLeaves(ready.leaves);
  out.setAtLeast(static_cast<std::uint16_t>(ready.at_least));
}
RoundReady read_ready(auto in) {
  return {in.getContributes() ? std::optional(in.getNumber()) : std::nullopt, in.getLeaves(), in.getAtLeast()};
}

void write_promise(const RoundPromise& promise, wire::Average::Promise::Builder out) {
  write(promise.ballot, out.initBallot());
  out.setAccepted(promise.accepted.has_value());
  if (promise.accepted) {
    write(promise.accepted->ballot, out.initAcceptedAt());
    write(promise.accepted->plan, out.initPlan());
  }
  write_ready(promise.ready, out);
}
std::optional<RoundPromise> read_promise(wire::Average::Promise::Reader in) {
  RoundPromise promise{.ballot = read(in.getBallot())};
  if (in.getAccepted()) {
    promise.accepted = RoundPromise::Accepted{.ballot = read(in.getAcceptedAt())};
    if (!read(in.getPlan(), promise.accepted->plan)) return std::nullopt;
  }
  promise.ready = read_ready(in);
  return promise;
}

std::optional<decltype(AverageMessage::body)> read_body(wire::Average::Reader in) {
  switch (in.which()) {
    case wire::Average::READY:
      return read_ready(in.getReady());
    case wire::Average::PREPARE:
      return RoundPrepare{read(in.getPrepare())};
    case wire::Average::PROMISE:
      return read_promise(in.getPromise());
    case wire::Average::REFUSAL:
      return RoundRefusal{read(in.getRefusal())};
    case wire::Average::PROPOSAL: {
      RoundProposal proposal{.ballot = read(in.getProposal().getBallot())};
      if (!read(in.getProposal().getPlan(), proposal.plan)) return std::nullopt;
      return proposal;
    }
    case wire::Average::ACCEPT:
      return RoundAccept{read(in.getAccept())};
    case wire::Average::COMMIT: {
      RoundCommit commit;
      if (!read(in.getCommit(), commit.plan)) return std::nullopt;
      return commit;
    }
    case wire::Average::ENTER: {
      RoundEnter enter;
      if (!read(in.getEnter().getPlan(), enter.plan) || !read_list(in.getEnter().getTaken(), max_taken, enter.taken))
        return std::nullopt;
      return enter;
    }
    case wire::Average::JOIN:
      return RoundJoin{};
    case wire::Average::HEARD:
      return RoundHeard{};
    case wire::Average::NOBODY:
      return RoundNobody{};
    case wire::Average::GONE:
      return RoundGone{};
    case wire::Average::WAITS: {
      RoundWaits waits;
      if (!read_list(in.getWaits(), max_told_late, waits.late)) return std::nullopt;
      return waits;
    }
    case wire::Average::ASK:
      return RoundAsk{read(in.getAsk())};
  }
  return std::nullopt;
}

/// Writes the fields with which both kinds of message begin.
void write_envelope(const auto& message, auto out) {
  auto collective = out.initCollective();
  collective.setNameHash(message.collective.name_hash);
  collective.setLayoutHash(message.collective.layout_hash);
  write(message.from, out.initFrom());
  write(message.to, out.initTo());
}
void read_envelope(auto in, auto& message) {
  message.collective = {in.getCollective().getNameHash(), in.getCollective().getLayoutHash()};
  message.from = read(in.getFrom());
  message.to = read(in.getTo());
}

}  // namespace

void write_average(const AverageNote& note, wire::Average::Builder out) {
  write_envelope(note, out);
  write(note.message.founding, out.initFounding());
  out.setRound(note.message.round);
  std::visit(Overloaded{[&](const RoundReady& ready) { write_ready(ready, out.initReady()); },
                        [&](const RoundPrepare& prepare) { write(prepare.ballot, out.initPrepare()); },
                        [&](const RoundPromise& promise) { write_promise(promise, out.initPromise()); },
                        [&](const RoundRefusal& refusal) { write(refusal.promised, out.initRefusal()); },
                        [&](const RoundProposal& proposal) {
                          auto body = out.initProposal();
                          write(proposal.ballot, body.initBallot());
                          write(proposal.plan, body.initPlan());
                        },
                        [&](const RoundAccept& accept) { write(accept.ballot, out.initAccept()); },
                        [&](const RoundCommit& commit) { write(commit.plan, out.initCommit()); },
                        [&](const RoundEnter& enter) {
                          auto body = out.initEnter();
                          write(enter.plan, body.initPlan());
                          write_list(enter.taken, body.initTaken(size_of(enter.taken)));
                        },
                        [&](const RoundWaits& waits) { write_list(waits.late, out.initWaits(size_of(waits.late))); },
                        [&](const RoundJoin&) { out.setJoin(); }, [&](const RoundHeard&) { out.setHeard(); },
                        [&](const RoundNobody&) { out.setNobody(); }, [&](const RoundGone&) { out.setGone(); },
                        [&](const RoundAsk& ask) { write(ask.part, out.initAsk()); }},
             note.message.body);
}

bool is_known_average(wire::Average::Reader in) {
  return in.which() <= wire::Average::WAITS;
}

std::optional<AverageNote> read_average(wire::Average::Reader in) {
  AverageNote note;
  read_envelope(in, note);
  note.message.founding = read(in.getFounding());
  note.message.round = in.getRound();
  auto body = read_body(in);
  if (!body) return std::nullopt;
  note.message.body = std::move(*body);
  return note;
}

void write_average(const AverageValues& values, wire::AverageValues::Builder out) {
  write_envelope(values, out);
  write(values.founding, out.initFounding());
  out.setRound(values.round);
  write(values.part, out.initPart());
}

std::optional<AverageValues> read_average(wire::AverageValues::Reader in) {
  AverageValues values;
  read_envelope(in, values);
  values.founding = read(in.getFounding());
  values.round = in.getRound();
  values.part = read(in.getPart());
  return values;
}

}  // namespace gossamer::peer
