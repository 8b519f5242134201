#!/usr/bin/env bash
# Runs a program as two MPI ranks that are as far apart as on two machines:
#
#   tools/two_hosts.sh COMMAND [ARGUMENT]...
#
# Each rank lives in a network namespace and under a host name of its own; nothing but TCP over a pair of
# virtual network cards joins them, shared memory between them is off. Needs root, iproute2 and Open MPI.
# Exits with the command's code (as mpirun reports it), and removes the namespaces in any case. The last
# line on stderr says how many bytes went over the wire in each direction.
#
# The script is also what mpirun calls in place of ssh, as: two_hosts.sh --remote HOST COMMAND...
set -euo pipefail

say() { printf 'two_hosts: %s\n' "$*" >&2; }
refuse() {
  say "$*"
  exit 3
}

if [ "${1:-}" = --remote ]; then
  shift 2  # there is one other host only
  exec ip netns exec "$TWO_HOSTS_NAMESPACE" unshare --uts sh -c 'hostname cachedit-b && eval "$*"' sh "$@"
fi

[ "$#" -gt 0 ] || refuse 'what shall run? tools/two_hosts.sh COMMAND [ARGUMENT]...'
[ "$(id -u)" = 0 ] || refuse 'making network namespaces needs root'
command -v ip >/dev/null || refuse "the program 'ip' is missing: install iproute2"
command -v mpirun >/dev/null || refuse "the program 'mpirun' is missing: install openmpi-bin"

a=cachedit-a-$$ b=cachedit-b-$$
# Both cards are in namespaces of their own, so names and addresses meet nobody else's.
card=joined subnet=10.203.7

bytes_sent() { ip netns exec "$1" cat "/sys/class/net/$card/statistics/tx_bytes"; }

clean_up() {
  local code=$?
  trap - EXIT INT TERM
  set +e
  exec 2>/dev/null  # the shell would report every process that is ended here
  for namespace in "$a" "$b"; do
    ip netns pids "$namespace" | xargs -r kill -KILL
    ip netns delete "$namespace"
  done
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$a" 2>/dev/null || refuse 'this machine does not let root make network namespaces (a container?)'
ip netns add "$b"
ip link add "$card" netns "$a" type veth peer name "$card" netns "$b" 2>/dev/null ||
  refuse 'this machine has no virtual network cards (kernel module veth)'
for host in 1 2; do
  namespace=$([ "$host" = 1 ] && echo "$a" || echo "$b")
  ip -n "$namespace" address add "$subnet.$host/24" dev "$card"
  ip -n "$namespace" link set "$card" up
  ip -n "$namespace" link set lo up
done

# mpirun runs on the first host and starts rank 0 there; for the second it calls this script.
export TWO_HOSTS_NAMESPACE=$b
script=$(realpath "${BASH_SOURCE[0]}")
options=(
  --allow-run-as-root --bind-to none --host "$subnet.1:1,$subnet.2:1" -n 2
  --mca plm_rsh_agent "$script --remote" --mca plm rsh --mca oob_tcp_if_include "$subnet.0/24"
  --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$subnet.0/24"
)
code=0
# In the background, so that a signal to this script ends both hosts at once.
# shellcheck disable=SC2016  # the inner shell expands its own arguments
ip netns exec "$a" unshare --uts sh -c 'hostname cachedit-a && exec mpirun "$@"' sh "${options[@]}" "$@" &
wait $! || code=$?
say "$(bytes_sent "$a") bytes went from rank 0's host, $(bytes_sent "$b") from rank 1's"
exit "$code"
