"""Secure aggregation: the server learns the sum of the clients' vectors and no single vector.

The protocol is that of Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine Learning",
Figure 4), on the full graph or on the sparse graph of Bell et al. 2020 ("Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead"). `Client` and `Server` exchange serialised messages only:

======  ==============  =====================================================================================
stage   message         content
======  ==============  =====================================================================================
0 up    ADVERTISE       public keys c (for talking to peers) and s (for masks)
0 down  KEYS            everybody's public keys; their hash, the transcript, is bound to all that follows
1 up    SHARES          to each peer, sealed: a share of the seed of s and one of the self-mask seed b
1 down  INBOX           the peers' sealed shares
2 up    MASKED_INPUT    x + PRG(b) + sum over peers of ±PRG(agreement of s): uniform in the ring
2 down  SURVIVORS       whose masked input arrived
3 up    CONFIRMATION    signature of what the client was told of the survivors
3 down  CONFIRMATIONS   those signatures; a client that was told otherwise refuses
4 up    REVEAL          per peer, a share of b of a survivor or of s of one that dropped out, never both
======  ==============  =====================================================================================

Stage 3 and signed keys are left out with ``signatures=False``, as in the paper's honest-but-curious variant.

What it gives, with ``signatures=True``: while fewer than ``2 threshold - clients`` of a group collude with the server
(a third at the default threshold of 2/3), also with one that deviates from the protocol, honest clients reveal shares
for one and the same set of at least ``threshold`` survivors, and the server opens the sum over that set or nothing.
Clients are assumed to know the server's key of the execution and each other's identity keys (the paper's public-key
infrastructure). On the sparse graph this rests on the assumed fraction of colluding clients; the graph is drawn from
the transcript, so that no party chooses it, though a server can discard graphs by discarding clients.

What it does not give: differential privacy (the exact sum is opened); protection from clients that submit wrong inputs;
hiding who takes part; a guarantee of an output (any party can make the round abort).
"""
