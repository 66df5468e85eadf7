# The header frame of every message between nodes. docs/reference/wire.md describes it together with the payload frames.
#
# Fields may be added at the end of a struct and members to the union: an older node skips what it does not know.
# Anything else needs a new protocol version (peer/limits.hpp).

@0xd1f60c2b7a94e853;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gossamer::peer::wire");

struct Header {
  union {
    # Admission, on both channels of a link.
    hello @0 :Hello;
    welcome @1 :Welcome;
    rejected @2 :Rejected;
    # Liveness, on the control channel; `ping` and `pong` also on bulk.
    ping @3 :Ping;
    pong @4 :Pong;
    goodbye @5 :Goodbye;
    # gossip/messages.hpp, each on the channel that docs/reference/wire.md says.
    exchangeRequest @6 :ExchangeRequest;
    exchangeReply @7 :ExchangeReply;
    exchangeAck @8 :ExchangeAck;
    jobInfo @9 :JobInfo;
    jobQuery @10 :JobQuery;
    pullRequest @11 :PullRequest;
    pullReply @12 :PullReply;
    # Who is in the cluster, on the control channel: gossip/membership/membership_messages.hpp.
    membership @13 :Membership;
    # What the members agree on (peer/admission/spread.hpp), on the control channel.
    denials @14 :Denials;
    keyRing @15 :KeyRing;
    # How a node that was invited gets the ring, on a connection that is not admitted.
    invitationClaim @16 :InvitationClaim;
    invitationGrant @17 :InvitationGrant;
    # Flow of bulk: a slice of a message on the bulk channel, and on control how much of bulk has arrived.
    bulkPart @18 :BulkPart;
    bulkAck @19 :BulkAck;
    # How nodes stand, for people who look (gossip/membership/summaries.hpp), on the control channel.
    summaries @20 :Summaries;
    # What has become of an exchange, on the control channel.
    exchangeInquiry @21 :ExchangeInquiry;
    # What members of a collective tell each other, on the control channel, and their values, on bulk
    # (gossip/average_messages.hpp).
    average @22 :Average;
    averageValues @23 :AverageValues;
    # The tensors of a job, for a node that is to keep it, on the control channel.
    layoutQuery @24 :LayoutQuery;
    layoutReply @25 :LayoutReply;
    # The listener's part of the keys that seal bulk, on the control channel after `welcome`.
    bulkOffer @26 :BulkOffer;
    # Certificates of members (peer/admission/certificates.hpp), on the control channel.
    certificates @27 :Certificates;
    # Who may sign in the authority's place (peer/keys/authority.hpp), on the control channel.
    deputies @28 :Deputies;
  }
}

struct Hello {
  versionLow @0 :UInt16;    # protocol versions that the dialler speaks
  versionHigh @1 :UInt16;
  publicKey @2 :Data;       # CURVE public key of the dialler, 32 bytes
  incarnation @3 :UInt64;   # larger at each start of the node
  nonce @4 :Data;           # 32 random bytes
  link @5 :UInt64;          # random; the same on both channels of one link
  channel @6 :UInt16;       # 0 control, 1 bulk
  address @7 :Text;         # where the dialler can be dialled; empty: nowhere
  name @8 :Text;            # for people
  proof @9 :Data;           # 32 bytes: the dialler holds the cluster key (docs/explanation/security.md)
  features @10 :UInt64;     # a bit for each optional ability (peer/limits.hpp)
  certificate @11 :Data;    # empty: none
  deputies @12 :Deputies;   # whoever has signed the certificate, and the latest; at most max_deputies_in_hello
}

struct Welcome {
  version @0 :UInt16;
  publicKey @1 :Data;
  incarnation @2 :UInt64;
  address @3 :Text;
  name @4 :Text;
  members @5 :List(Member); # reserved: always empty, and not looked at; `membership` tells who is there
  proof @6 :Data;           # 32 bytes: the listener holds the secret of publicKey
  features @7 :UInt64;
  certificate @8 :Data;     # empty: none
  deputies @9 :Deputies;    # as in Hello
}

struct Member {
  node @0 :Data;            # 16 bytes
  address @1 :Text;
}

struct Rejected {
  reason @0 :UInt16;
  text @1 :Text;
}

struct Ping {
  sentAt @0 :Int64;         # microseconds of the sender's clock; comes back in the pong
  members @1 :List(Member); # reserved, as in Welcome
  messages @2 :UInt64;      # how many messages the sender has sent on this channel since admission, with this one;
                            # 0: it does not count them
}

struct Pong {
  sentAt @0 :Int64;
}

struct Goodbye {
  text @0 :Text;
}

struct Job {
  nameHash @0 :UInt64;
  layoutHash @1 :UInt64;
}

struct Age {
  samples @0 :UInt64;
  cadence @1 :UInt64;
}

struct ExchangeRequest {
  counter @0 :UInt64;
  job @1 :Job;
  fragment @2 :UInt32;
  codec @3 :UInt8;
  minShift @4 :UInt8;
  seed @5 :UInt64;
  clock @6 :UInt64;
  age @7 :Age;
  blockCount @8 :UInt32;
  clip @9 :Float32;
  tracerRound @10 :UInt32;
  tracer @11 :List(Float64);
  pushes @12 :Bool;         # the initiator takes the responder's value over
  weight @13 :Float32;      # weights = "samples": samples of the initiator's steps
  usual @14 :Float32;       # the median of the distances that the initiator finds; 0: not known
}

struct ExchangeReply {
  counter @0 :UInt64;
  job @1 :Job;
  fragment @2 :UInt32;
  status @3 :UInt8;
  reason @4 :UInt8;
  codec @5 :UInt8;
  shift @6 :UInt8;
  clock @7 :UInt64;
  age @8 :Age;
  blockCount @9 :UInt32;
  tracerRound @10 :UInt32;
  tracer @11 :List(Float64);
  limited @12 :Bool;        # codec f32: the differences are scaled down
  halvings @13 :Data;       # if limited: a byte for each block, by how many powers of two; or empty
}

struct ExchangeAck {
  counter @0 :UInt64;
  outcome @1 :UInt8;        # 0 taken, 1 never, 2 unknown
}

struct ExchangeInquiry {
  counter @0 :UInt64;
  job @1 :Job;
  fragment @2 :UInt32;
}

struct JobInfo {
  job @0 :Job;
  name @1 :Text;
  state @2 :UInt8;
  clock @3 :UInt64;
  elements @4 :UInt64;
  fragments @5 :UInt32;
  fragmentElements @6 :UInt32;
  finishing @7 :UInt8;
  firstExchange @8 :UInt64;
  quarantined @9 :Bool;
  settings @10 :JobSettings;
  keeps @11 :Bool;
  trainers @12 :UInt32;     # with keeps
  firstTrainer @13 :Data;   # 16 bytes with keeps, else empty
  logged @14 :List(LoggedValue);
}

struct LoggedValue {
  name @0 :Text;
  value @1 :Float64;
}

struct JobSetting {
  name @0 :Text;
  value @1 :Text;
}

struct JobSettings {
  version @0 :UInt64;       # 0: none were given, and the rest is empty
  author @1 :Data;          # 16 bytes
  values @2 :List(JobSetting);  # names ascending
  signature @3 :Data;       # 64 bytes, of the cluster's authority; empty: none
}

struct JobQuery {
  job @0 :Job;
}

struct LayoutQuery {
  job @0 :Job;              # layoutHash 0: any
  firstTensor @1 :UInt32;
}

struct LayoutTensor {
  name @0 :Text;
  dtype @1 :UInt8;
  role @2 :UInt8;
  shape @3 :List(UInt64);
}

struct LayoutReply {
  job @0 :Job;
  fragmentElements @1 :UInt32;
  tensorCount @2 :UInt32;   # 0: not known, and the rest is empty
  firstTensor @3 :UInt32;
  tensors @4 :List(LayoutTensor);
}

struct PullRequest {
  job @0 :Job;
  fragment @1 :UInt32;
}

struct PullReply {
  job @0 :Job;
  fragment @1 :UInt32;
  reason @2 :UInt8;
  clock @3 :UInt64;
  hash @4 :UInt64;
  cursor @5 :Data;
}

# Fields and their bounds: gossip/membership/membership_messages.hpp.

struct MemberRecord {
  node @0 :Data;            # 16 bytes
  incarnation @1 :UInt64;
  dialOnly @2 :Bool;
  address @3 :Text;         # tcp://HOST:PORT; HOST 0.0.0.0 or :: in the sender's own: where it is seen
}

struct Rumour {
  claim @0 :UInt8;
  spread @1 :Bool;
  hops @2 :UInt8;
  subject @3 :MemberRecord;
  accuser @4 :Data;         # 16 bytes where claim is 1 (suspected), else empty
}

struct SyncEntry {
  record @0 :MemberRecord;
  claim @1 :UInt8;
}

struct Membership {
  incarnation @0 :UInt64;   # of the sender's word, not of its process
  partial @1 :Bool;
  rumours @2 :List(Rumour);
  union {
    news @3 :Void;
    ping :group {
      sequence @4 :UInt32;
      neighbour @5 :Bool;
    }
    pingRequest :group {
      sequence @6 :UInt32;
      patienceUs @7 :UInt32;
      target @8 :MemberRecord;
    }
    ack @9 :UInt32;         # a sequence
    nack @10 :UInt32;
    sync :group {
      sender @11 :MemberRecord;
      answerWanted @12 :Bool;
      entries @13 :List(SyncEntry);
    }
    join @14 :MemberRecord;
    forwardJoin :group {
      newcomer @15 :MemberRecord;
      hopsLeft @16 :UInt8;
    }
    neighbourRequest :group {
      sender @17 :MemberRecord;
      urgent @18 :Bool;
    }
    neighbourReply :group {
      sender @19 :MemberRecord;
      accepted @20 :Bool;
    }
    disconnect @21 :Void;
    shuffle :group {
      origin @22 :MemberRecord;
      hopsLeft @23 :UInt8;
      records @24 :List(MemberRecord);
    }
    shuffleReply @25 :List(MemberRecord);
    leave @26 :Void;
  }
}

struct Denial {
  node @0 :Data;            # 16 bytes
  denied @1 :Bool;          # false: it is allowed again
  decidedAt @2 :Int64;      # microseconds since 1970; the later decision holds
  reason @3 :Text;          # for people
  signature @4 :Data;       # 64 bytes, the authority's; or empty
}

struct Denials {
  records @0 :List(Denial);
}

struct RingKey {
  key @0 :Data;             # 32 bytes: the cluster key itself
  madeAt @1 :Int64;         # microseconds since 1970; 0: not known
  signature @2 :Data;
}

struct RetiredKey {
  fingerprint @0 :Data;     # 8 bytes
  retiredAt @1 :Int64;
  signature @2 :Data;
}

struct KeyRing {
  keys @0 :List(RingKey);   # the first is the one that the sender listens with
  retired @1 :List(RetiredKey);
  authority @2 :Data;       # 32 bytes: whose signatures the sender asks for; empty: nobody's
  rule @3 :AdmissionRule;   # signature empty: the cluster key is enough
}

struct AdmissionRule {
  certificates @0 :Bool;    # nodes are let in with a certificate only
  decidedAt @1 :Int64;
  signature @2 :Data;
}

struct Deputies {
  records @0 :List(Deputy); # at most max_deputies
  authority @1 :Data;       # 32 bytes: whose deputies they are
}

struct Deputy {
  key @0 :Data;             # 32 bytes, of Ed25519
  powers @1 :UInt8;         # 1: denials, 2: cluster keys, 4: settings of jobs, 8: certificates; 0: a deputy no more
  decidedAt @2 :Int64;      # microseconds since 1970; the later decision about a key holds
  name @3 :Text;            # for people
  signature @4 :Data;       # 64 bytes, the authority's
}

struct Certificates {
  records @0 :List(Data);   # at most max_certificates_in_message, of at most max_certificate_bytes each
}

struct InvitationClaim {
  invitation @0 :Data;      # 16 bytes: which one
  expiresAt @1 :Int64;      # microseconds since 1970
  publicKey @2 :Data;       # of the node that joins
  nonce @3 :Data;           # 32 random bytes
  proof @4 :Data;           # 32 bytes: the sender holds the invitation (docs/explanation/security.md)
  certificate @5 :Data;     # empty: the invitation has no warrant
}

struct InvitationGrant {
  ring @0 :KeyRing;
  deputies @1 :Deputies;
}

struct BulkPart {
  message @0 :UInt64;               # numbered by the sender; the same in all parts of one message
  offset @1 :UInt64;                # of this part's first byte in the message's payload, frame after frame
  frameBytes @2 :List(UInt32);      # first part only: sizes of the message's payload frames
  header @3 :Data;                  # first part only: the message's header frame
}

struct BulkOffer {
  nonce @0 :Data;           # 32 random bytes
}

struct BulkAck {
  received @0 :UInt64;              # bytes of frames received on bulk since the link came up, heartbeats apart
  receivedAt @1 :Int64;             # when the last of them came in, in microseconds by the sender's clock, which counts
                                    # from any moment; 0: not told
}

# Fields and their bounds: gossip/messages.hpp.

struct JobSummary {
  name @0 :Text;
  state @1 :UInt8;
  clock @2 :UInt64;
  consensus @3 :Float32;
  tracerRound @4 :UInt32;
  mixingPerS @5 :Float32;
}

struct NodeSummary {
  node @0 :Data;            # 16 bytes
  incarnation @1 :UInt64;
  number @2 :UInt64;
  ageMs @3 :UInt32;
  name @4 :Text;
  neighbours @5 :UInt32;
  goodputBytesS @6 :UInt64;
  jobs @7 :List(JobSummary);
  linked @8 :List(UInt32);  # the first four bytes of neighbours' ids, as a number whose first byte counts most
}

struct Summaries {
  nodes @0 :List(NodeSummary);
}

# Fields and their bounds: gossip/average_messages.hpp.

struct Participant {
  nodeLow @0 :UInt64;       # the node's 16 bytes as two integers, the first byte the lowest
  nodeHigh @1 :UInt64;
  life @2 :UInt64;          # 0: every participant of the node
}

struct Contribution {
  from @0 :Participant;
  number @1 :UInt64;
}

struct Founding {
  at @0 :Int64;             # microseconds since 1970; 0: the sender is no member
  by @1 :Participant;
}

struct Ballot {
  number @0 :UInt64;
  conductor @1 :Participant;
}

struct RoundPlan {
  madeAt @0 :Ballot;
  contributions @1 :List(Contribution);   # ascending
  members @2 :List(Participant);          # ascending
  voters @3 :List(Participant);           # ascending; some of the members
}

struct RoundPart {
  kind @0 :UInt8;           # 0 contribution, 1 result
  madeAt @1 :Ballot;
  fragment @2 :UInt32;      # asked for: the number of fragments stands for none
}

struct Average {
  collective @0 :Job;
  from @1 :Participant;
  to @2 :Participant;
  founding @3 :Founding;
  round @4 :UInt64;
  union {
    ready :group {
      contributes @5 :Bool; # the number is given
      number @6 :UInt64;
      leaves @12 :Bool;
      atLeast @29 :UInt16;  # with a contribution: members
    }
    prepare @7 :Ballot;
    promise :group {
      ballot @8 :Ballot;
      accepted @9 :Bool;    # acceptedAt and plan are given
      acceptedAt @10 :Ballot;
      plan @11 :RoundPlan;
      contributes @13 :Bool;
      number @14 :UInt64;
      leaves @27 :Bool;
      atLeast @30 :UInt16;
    }
    refusal @15 :Ballot;
    proposal :group {
      ballot @16 :Ballot;
      plan @17 :RoundPlan;
    }
    accept @18 :Ballot;
    commit @19 :RoundPlan;
    enter :group {
      plan @20 :RoundPlan;
      taken @21 :List(Contribution);
    }
    join @22 :Void;
    heard @23 :Void;
    nobody @24 :Void;
    gone @25 :Void;
    ask @26 :RoundPart;
    waits @28 :List(Participant);
  }
}

struct AverageValues {
  collective @0 :Job;
  from @1 :Participant;
  to @2 :Participant;
  founding @3 :Founding;
  round @4 :UInt64;
  part @5 :RoundPart;
}
