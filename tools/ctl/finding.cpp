#include "tools/ctl/finding.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

const char* name_of(Grade grade) {
  return grade == Grade::ok ? "ok" : grade == Grade::problem ? "problem" : "warning";
}

Tone tone_of(Grade grade) {
  return grade == Grade::ok ? Tone::good : grade == Grade::problem ? Tone::bad : Tone::plain;
}

}  // namespace

std::vector<Finding> watched(const json& status, const std::string& about, const std::string& job) {
  std::vector<Finding> findings;
  for (const json& found : status.value("findings", json::array())) {
    if (found.at("node") != about || found.at("job") != job) continue;
    if (found.at("rule") == "quarantined") continue;  // whoever asks for these reports it at once
    const auto find = text_of(found, "grade") == "problem" ? problem : warning;
    findings.push_back(
        find(job.empty() ? text_of(found, "rule") : "job " + safe_text(job),
             fmt::format("{}, for {}", text_of(found, "text"), duration_text(number_of(found, "since_s"))),
             text_of(found, "advice")));
  }
  return findings;
}

Finding ok(std::string topic, std::string text) {
  return {Grade::ok, std::move(topic), std::move(text), ""};
}
Finding warning(std::string topic, std::string text, std::string advice) {
  return {Grade::warning, std::move(topic), std::move(text), std::move(advice)};
}
Finding problem(std::string topic, std::string text, std::string advice) {
  return {Grade::problem, std::move(topic), std::move(text), std::move(advice)};
}

Grade worst(const std::vector<Finding>& findings) {
  Grade grade = Grade::ok;
  for (const Finding& finding : findings)
    grade = std::max(grade, finding.grade);
  return grade;
}

json as_json(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings)
    list.push_back({{"grade", name_of(finding.grade)},
                    {"topic", finding.topic},
                    {"text", finding.text},
                    {"advice", finding.advice}});
  return {{"findings", std::move(list)}, {"worst", name_of(worst(findings))}};
}

std::string as_text(const std::vector<Finding>& findings, bool colour) {
  Table table;
  for (const Finding& finding : findings) {
    table.rows.push_back(
        {{name_of(finding.grade), false, tone_of(finding.grade)}, {finding.topic}, {safe_text(finding.text)}});
    if (!finding.advice.empty())
      table.rows.push_back({{""}, {""}, {"-> " + safe_text(finding.advice), false, Tone::dim}});
  }
  return table.render(colour);
}

}  // namespace gossamer::ctl
