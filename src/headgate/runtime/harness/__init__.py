"""The test harness: a version's real source, mapping and sink, run once, apart from the node, and thrown away.

A test runs in its own process, which can do nothing to the node: `zygote` has imported Headgate and forks on request,
`warden` watches what was forked, `limits` takes rights away from it, and `child` runs the job. On the node's side
`children` starts them and reads their answers, `wire` is what the two say to each other, and `harness` knows what to
test. Secrets of the version under test go through the wire and nothing else does: no URL of the registry, no master
key, no other version's secrets.
"""
