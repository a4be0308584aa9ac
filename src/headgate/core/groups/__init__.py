"""Groups: of several consumers one at a time is active. This is the whole protocol; each module says its part in full.

**The problem.** Several programs could do the same work, and exactly one of them should. Programs crash, pause, and
lose their connections, and so do the nodes in between. Nobody can see the difference between a program that is dead and
one that is only slow. So the promise is about *belief*: at no moment do two consumers of a group believe that they are
active. That somebody is active soon comes second.

**Who knows what.** A consumer is connected to a node by a WebSocket. The state of a group is in rows of the database;
any node may change them, under the lock of the group's row.

    consumer            node                       database
    ────────            ────                       ────────
    belief     ◀─────▶  delivery      ─requests─▶  roster ─▶ machine
                        deadlines     ─requests─▶

    belief      what one consumer may believe, and what it answers           (in the client)
    delivery    which orders a node sends, which beats it echoes             (in each node, for its connections)
    deadlines   for how long an observer waits for a consumer out of touch   (in each node, for all consumers)
    requests    what is asked of a group, while it is still true             (in a transaction)
    roster      a group and its consumers, as the rows have them
    machine     who is active, who steps down, for whom the group waits      (in a transaction)
    explain     all of this in sentences                                     (for people)

**Three numbers** make everything else safe to repeat, to delay and to lose:

- The *epoch* of a group rises with every grant. Orders and confirmations name it. It is the fencing token that a
  program hands to what it writes to, and it never falls, not even when a group is removed and made again.
- The *incarnation* of a consumer rises whenever it loses touch. Orders name it, so an order for an earlier connection
  means nothing to the next one; requests name it, so the end of an earlier connection does nothing to the next one.
- The *lease* is a duration. Everybody measures it on their own clock, and clocks are never compared.

**Why two never believe.** A consumer believes until a lease after it *sent* the last beat that was echoed, less a
margin. Before its place is given to another, one of these has happened:

1. its word: it has confirmed that it stepped down, or said that it leaves;
2. a lease without an echo, counted by its own node from the last echo, which was later than the sending;
3. a lease of silence, counted by any node from the moment when it first saw the consumer out of touch in the rows,
   which was later still. If the consumer's node was declared dead, that node's own trust is added, because for
   that long it may have echoed.

Each of them begins after the belief's own clock, so each ends after the belief.

In a *fenced* group there is a fourth: the program has ended its connection itself, which it may have done without
knowing (a reset in between looks the same). Then two may believe, and the epoch is what keeps them apart: everything
that they write carries it, and what they write to refuses a lower one. `requests` has the rest.

**A hand-over**, step by step. B joins a group of partition 1 in which A is active (epoch 4). The machine wants B: it
marks A as *deactivating*, and an unanswered order is in A's row. A's node reads it, and sends `step_down` to A again
and again. A finishes its work and confirms epoch 4. The confirmation becomes a request; the machine sets A to
*waiting*, nobody holds, so B is granted epoch 5 and gets an order in turn. B confirms it, and begins as soon as one of
its beats was echoed. If A never answers, its node mutes it: no beat is echoed, and after a lease it is dropped. If A's
connection is lost, A becomes *disconnected*, and either comes back (with a higher incarnation, and continues) or is
*forgotten* after a lease. Either way B is granted then, and not before.
"""
