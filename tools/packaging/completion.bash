# Completion for gossamerd, gossamerctl, gossamer-sim and gossamer-bench in bash. Subcommands and options are what the
# program's own --help lists, so there is nothing here to fall behind. Names of jobs, nodes and keys come from the daemon
# of this machine, if one answers at once; otherwise there are none.

# _gossamer_names COMMAND MEMBER: what the daemon tells of these. Names with blanks or quotes are left out.
_gossamer_names() {
  # shellcheck disable=SC2086  # the command may have two words
  timeout 1 "${ask[@]}" --json $1 2>/dev/null | grep -o "\"$2\":\"[^\"\\\\ ]*\"" | cut -d '"' -f 4
}

# Words for the argument that --help calls so, after this subcommand.
_gossamer_arguments() {
  case $1/$2 in
    JOB/* | --job/*) _gossamer_names jobs job ;;
    NODE/allow) _gossamer_names denials node ;;
    NODE/deny) _gossamer_names members node ;;
    node/explain) _gossamer_names members name ;;
    FINGERPRINT/*) _gossamer_names "key list" fingerprint ;;
  esac
}

_gossamer() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} subcommands=() ask=("$1") i other help
  for ((i = 1; i < COMP_CWORD; ++i)); do
    other=${COMP_WORDS[i]}
    if [[ $other == -- ]]; then  # behind it is another program's
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
    fi
    [[ ${COMP_WORDS[i - 1]} == --socket ]] && ask=("$1" --socket "$other") && continue
    [[ $other == [a-z]* ]] && subcommands+=("$other")
  done
  case $previous in
    --config | --socket | --mean | --output | --state-dir | --state-directory | --daemon | --folder | --client-socket)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
      ;;
    --job)
      mapfile -t COMPREPLY < <(compgen -W "$(_gossamer_arguments --job)" -- "$word")
      return
      ;;
  esac
  # Arguments are no subcommands: the last words are left off until the program understands.
  local given=${#subcommands[@]}
  while ! help=$("$1" "${subcommands[@]}" --help 2>/dev/null) && ((${#subcommands[@]})); do
    unset 'subcommands[-1]'
  done
  # The usage has the subcommand, then its arguments. So many words were given beyond the subcommand.
  local usage path arguments
  usage=$(sed -n 's/^Usage: //p' <<<"$help")
  read -ra usage <<<"${usage#"$1"}"
  for ((i = 0; i < ${#usage[@]}; ++i)); do
    [[ ${usage[i]} == "[OPTIONS]" ]] && break
  done
  path=("${usage[@]:0:i}") arguments=("${usage[@]:i + 1}")
  local argument=${arguments[given - ${#path[@]}]:-}
  argument=${argument//[][]/}
  mapfile -t COMPREPLY < <(compgen -W "$(sed -n '
    /^Options:/,/^$/ s/^  \(-[^ ]*\).*/\1/p
    /^Subcommands:/,/^$/ s/^  \([a-z][^ ]*\).*/\1/p' <<<"$help" | tr ',' '\n')
    $(_gossamer_arguments "$argument" "${path[*]}")" -- "$word")
  if ((${#COMPREPLY[@]} == 0)) && [[ $argument == FILE || $argument == file ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _gossamer gossamerd gossamerctl gossamer-sim gossamer-bench
