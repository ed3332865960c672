//! The rows. Judged alike: what a server saw and nobody agreed to is a breach.

use crate::attacks::Control::{None as NoControl, SameAsRoot, Text};
use crate::attacks::{Attack, PROXY, WORKSPACE, refuse_line};
use crate::special;

/// Curl with the proxies that it is told of, and without.
macro_rules! both_ways {
    ($arguments:literal) => {
        concat!("curl -s -m 3 ", $arguments, "\ncurl -s -m 3 --noproxy '*' ", $arguments)
    };
}

/// All rows.
pub const ROWS: &[Attack] = &[
    Attack { id: "esc-0129", ..WORKSPACE },
    Attack { id: "esc-0130", ..WORKSPACE },
    Attack { id: "esc-0131", ..WORKSPACE },
    Attack { id: "esc-0132", ..WORKSPACE },
    Attack { id: "esc-0133", check_result: |seen| refuse_line(seen, "64 bytes from"), control: SameAsRoot, ..WORKSPACE },
    Attack {
        id: "esc-0134",
        text: "/usr/bin/python3 $SHARED/probe.py raw-sockets",
        check_result: |seen| refuse_line(seen, "MADE"),
        control: SameAsRoot,
        least: 3,
        ..WORKSPACE
    },
    Attack {
        id: "esc-0135",
        check_result: |seen| {
            let foreign = seen.output.stdout.lines().filter(|line| line.contains("near0"));
            foreign.map(|line| format!("an interface of the host: {line}")).collect()
        },
        full_only: Some("there is no network namespace; interfaces can be seen, not used"),
        ..WORKSPACE
    },
    Attack {
        id: "esc-0136",
        text: "/usr/bin/python3 $SHARED/probe.py vsock",
        check_result: |seen| refuse_line(seen, "MADE"),
        ..WORKSPACE
    },
    Attack {
        id: "esc-0138",
        special: Some(special::resolver_daemons),
        ..WORKSPACE
    },
    Attack { id: "esc-0139", least: 6,
        ..WORKSPACE },
    Attack {
        id: "esc-0142",
        text: "/usr/bin/python3 $SHARED/probe.py io-uring",
        check_result: |seen| refuse_line(seen, "MADE"),
        ..WORKSPACE
    },
    Attack {
        id: "esc-0143",
        text: "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy curl -s -m 3 http://allowed.test/ http://denied.test/",
        check_result: find_proxy_bypass,
        ..PROXY
    },
    Attack {
        id: "esc-0144",
        text: "NO_PROXY='*' no_proxy='*' curl -s -m 3 http://allowed.test/ http://denied.test/",
        check_result: find_proxy_bypass,
        ..PROXY
    },
    Attack { id: "esc-0146", text: both_ways!("http://denied.test/"), ..PROXY },
    Attack { id: "esc-0147", special: Some(special::nothing_is_allowed), ..WORKSPACE },
    Attack {
        id: "esc-0148",
        text: "for h in evilallowed.test allowed.test.attacker.test allowed.testx ALLOWED.TEST. xn--allwed-0ta.test; do
curl -s -m 3 -w \"$h %{http_code}\\n\" http://$h/; curl -s -m 3 --noproxy '*' -w \"$h %{http_code}\\n\" http://$h/; done",
        least: 12,
        ..PROXY
    },
    Attack {
        id: "esc-0149",
        grants: &["connect *.allowed.test:80"],
        agreed: &["*.allowed.test:80"],
        works: Some("http://one.allowed.test/"),
        text: "for h in a.allowed.test a.b.allowed.test allowed.test .allowed.test a..allowed.test xallowed.test; do
curl -s -m 3 http://$h/; curl -s -m 3 --noproxy '*' http://$h/; done",
        least: 10,
        ..PROXY
    },
    Attack { id: "esc-0150", text: "/usr/bin/python3 $SHARED/probe.py socks-nul", ..PROXY },
    Attack { id: "esc-0151", text: "/usr/bin/python3 $SHARED/probe.py odd-names", least: 100,
        ..PROXY },
    Attack {
        id: "esc-0154",
        text: "for u in 10.0.0.1 172.16.0.1 192.168.0.1 100.64.0.1 127.0.0.1 0.0.0.0 198.18.0.1 224.0.0.1 255.255.255.255; do
curl -s -m 3 http://$u/; curl -s -m 3 --noproxy '*' http://$u/; done",
        least: 10,
        ..PROXY
    },
    Attack {
        id: "esc-0155",
        text: "for u in 2130706433 0x7f000001 0177.0.0.1 127.1 0x7f.1 017700000001 127.0.0.1.; do
curl -s -m 2 http://$u:$PORT/; curl -s -m 2 --noproxy '*' http://$u:$PORT/; done
/usr/bin/python3 $SHARED/probe.py connect-to 2130706433:7777 0x7f000001:7777 0177.0.0.1:7777 127.1:7777 0x7f.1:7777",
        least: 20,
        ..PROXY
    },
    Attack {
        id: "esc-0157",
        grants: &["connect loopback.test", "connect private.test", "connect metadata.test", "connect mapped.test",
            "connect nat64.test", "connect host.test", "connect allowed.test:80"],
        agreed: &["allowed.test:80", "loopback.test:0", "private.test:0", "metadata.test:0", "mapped.test:0",
            "nat64.test:0", "host.test:0"],
        text: "for h in loopback private metadata mapped nat64 host; do for p in 80 $PORT; do
curl -s -m 3 http://$h.test:$p/; curl -s -m 3 --noproxy '*' http://$h.test:$p/; done; done",
        least: 20,
        ..PROXY
    },
    Attack {
        id: "esc-0159",
        grants: &["connect mixed.test:80"],
        agreed: &["mixed.test:80"],
        works: Some("http://mixed.test/"),
        text: "/usr/bin/python3 $SHARED/probe.py every-address mixed.test 80",
        ..PROXY
    },
    Attack {
        id: "esc-0160",
        text: "echo '127.0.0.1 allowed.test' 2>&1 >> /etc/hosts; printf 'short denied.test\\n' > h
HOSTALIASES=$PWD/h curl -s -m 3 --noproxy '*' http://short/; curl -s -m 3 http://allowed.test:$PORT/",
        control: Text("printf 'short denied.test\\n' > h; HOSTALIASES=$PWD/h curl -s -m 3 --noproxy '*' http://short/"),
        ..PROXY
    },
    Attack {
        id: "esc-0161",
        text: "/usr/bin/python3 $SHARED/probe.py connect-to 127.0.0.1:7777 '[::1]:7777' 169.254.169.254:80 \
'[::ffff:127.0.0.1]:7777' '[fd00:ec2::254]:80' 10.0.0.1:80 11.0.0.1:7777 localhost:7777",
        least: 8,
        ..PROXY
    },
    Attack {
        id: "esc-0162",
        grants: &["connect allowed.test:443"],
        agreed: &["allowed.test:443"],
        works: Some("https://allowed.test/"),
        text: "/usr/bin/python3 $SHARED/probe.py connect-to allowed.test:22 allowed.test:25 allowed.test:2375 allowed.test:0 \
allowed.test:65536 allowed.test:65616 allowed.test:443abc allowed.test:+80 allowed.test:80
for p in 22 25 80 2375 8080 8443; do curl -s -m 3 --noproxy '*' http://allowed.test:$p/; done",
        least: 12,
        ..PROXY
    },
    Attack {
        id: "esc-0163",
        grants: &["connect allowed.test:8080", "connect allowed.test:80"],
        agreed: &["allowed.test:8080", "allowed.test:80"],
        text: "/usr/bin/python3 $SHARED/probe.py connect-to allowed.test:8080",
        ..PROXY
    },
    Attack { id: "esc-0164", text: "/usr/bin/python3 $SHARED/probe.py sni denied.test", ..PROXY },
    Attack {
        id: "esc-0165",
        text: "/usr/bin/python3 $SHARED/probe.py sni ''; /usr/bin/python3 $SHARED/probe.py split-hello",
        least: 6,
        ..PROXY
    },
    Attack { id: "esc-0167", text: "/usr/bin/python3 $SHARED/probe.py keep-alive", ..PROXY },
    Attack { id: "esc-0169", text: "/usr/bin/python3 $SHARED/probe.py smuggle", least: 25,
        ..PROXY },
    Attack { id: "esc-0170", text: "/usr/bin/python3 $SHARED/probe.py header-in-path", ..PROXY },
    Attack {
        id: "esc-0172",
        text: "for to in http://denied.test/ http://169.254.169.254/ http://127.0.0.1:$PORT/; do
curl -s -m 3 -L \"http://allowed.test/redirect?$to\"; curl -s -m 3 --noproxy '*' -L \"http://allowed.test/redirect?$to\"; done",
        least: 6,
        ..PROXY
    },
    Attack {
        id: "esc-0175",
        text: "/usr/bin/python3 $SHARED/probe.py open-ports",
        check_result: |seen| {
            let looked = seen.output.stdout.contains("LOOKED");
            let open = refuse_line(seen, "OPEN");
            if looked { open } else { vec!["nobody looked".to_owned()] }
        },
        control: NoControl("the door has no such interface; the row looks for one at every port"),
        ..PROXY
    },
    Attack {
        id: "esc-0177",
        special: Some(special::others_reach_no_proxy),
        full_only: Some("the door listens on the host's loopback for a moment, and takes what the broker announced alone"),
        ..PROXY
    },
    Attack { id: "esc-0178", special: Some(special::kill_proxy), ..PROXY },
    Attack {
        id: "esc-0180",
        // Not by a program whose use is asked about.
        text: "/usr/bin/python3 -c \"import urllib.request as u; u.urlopen(u.Request('http://allowed.test/up', data=bytes(20 << 20)))\"",
        check_result: |seen| {
            let sent = seen.use_of("allowed.test:80").and_then(|used| used["bytes_up"].as_u64()).unwrap_or_default();
            if sent >= 20 << 20 { Vec::new() } else { vec![format!("{sent} bytes are on record, not 20 MiB")] }
        },
        ..PROXY
    },
    Attack {
        id: "esc-0181",
        grants: &[],
        config: "[profiles.workspace.egress]\nallow = ['allowed.test:80', 'allowed.test:443']\n\
                 [profiles.workspace.egress.inspect]\nallow = ['GET http://allowed.test/*', 'GET https://allowed.test/*']\n",
        works: Some("https://allowed.test/works"),
        text: "for s in http https; do for m in POST PUT DELETE PATCH OPTIONS; do curl -s -m 3 -X $m -d x $s://allowed.test/
curl -s -m 3 --noproxy '*' -X $m -d x $s://allowed.test/; done
curl -s -m 3 -X POST -H 'X-HTTP-Method-Override: GET' $s://allowed.test/; done",
        check_result: |seen| {
            let other = seen.sight.requests().filter(|request| request["method"] != "GET");
            other.map(|request| format!("asked: {request}")).collect()
        },
        least: 12,
        ..PROXY
    },
    Attack {
        id: "esc-0182",
        text: "git ls-remote git://allowed.test/x; git ls-remote ssh://allowed.test/x; curl -s -m 3 ftp://allowed.test/
/usr/bin/python3 $SHARED/probe.py udp 93.184.2.1/443 93.184.2.1/7777",
        ..PROXY
    },
    Attack { id: "esc-0185", text: "/usr/bin/python3 $SHARED/probe.py forwarder", ..PROXY },
    // Rows of our own.
    Attack { id: "net-dns-tunnel", text: "/usr/bin/python3 $SHARED/probe.py dns-tunnel", least: 8,
        ..WORKSPACE },
    Attack {
        id: "net-dns-tunnel-beside-a-grant",
        text: "/usr/bin/python3 $SHARED/probe.py dns-tunnel",
        with_proxies: false,
        least: 8,
        ..PROXY
    },
    Attack {
        id: "net-rebinding",
        grants: &["connect rebind.test"],
        agreed: &["rebind.test:80", "rebind.test:7777"],
        works: None,
        text: "for n in 1 2 3 4; do curl -s -m 3 --noproxy '*' http://rebind.test:$PORT/; curl -s -m 3 http://rebind.test:$PORT/; done",
        ..PROXY
    },
    Attack { id: "net-fronting-by-host", text: "/usr/bin/python3 $SHARED/probe.py http-host", least: 6,
        ..PROXY },
    Attack {
        id: "net-fronting-inside-opened-tls",
        grants: &[],
        config: "[profiles.workspace.egress]\nallow = ['allowed.test:443']\ninspect.hosts = ['allowed.test:443']\n",
        agreed: &["allowed.test:443"],
        works: Some("https://allowed.test/works"),
        text: "/usr/bin/python3 $SHARED/probe.py host-in-tls",
        ..PROXY
    },
    Attack {
        id: "net-http2-in-the-clear",
        grants: &["connect allowed.test:9418", "connect allowed.test:80"],
        agreed: &["allowed.test:80", "allowed.test:9418"],
        text: "/usr/bin/python3 $SHARED/probe.py http2",
        check_result: |seen| {
            let prefaces = seen.sight.said().filter(|data| data.contains("PRI * HTTP/2"));
            prefaces.map(|data| format!("said: {data}")).collect()
        },
        ..PROXY
    },
    Attack {
        id: "net-metadata",
        text: "for u in 169.254.169.254 169.254.170.2 100.100.100.200 '[fd00:ec2::254]' '[::ffff:169.254.169.254]' '[64:ff9b::a9fe:a9fe]'; do
curl -s -g -m 3 http://$u/latest/meta-data/; curl -s -g -m 3 --noproxy '*' http://$u/latest/meta-data/; done",
        least: 10,
        ..PROXY
    },
    Attack {
        id: "net-a-wide-grant-is-not-for-special-addresses",
        grants: &["connect *"],
        agreed: &["allowed.test:80", "metadata.test:0", "private.test:0", "loopback.test:0"],
        text: "for u in 169.254.169.254 10.0.0.1 192.168.0.1 '[fd00:ec2::254]' metadata.test private.test loopback.test:$PORT 11.0.0.1:$PORT; do
curl -s -g -m 3 http://$u/; curl -s -g -m 3 --noproxy '*' http://$u/; done",
        least: 15,
        ..PROXY
    },
    Attack {
        id: "net-this-machine-is-reached-where-it-is-named",
        grants: &["connect *", "connect 11.0.0.1:7777"],
        agreed: &["11.0.0.1:7777"],
        works: Some("http://11.0.0.1:7777/"),
        with_proxies: false,
        text: "curl -s -m 3 http://11.0.0.1:25/; curl -s -g -m 3 'http://[2a00:11::1]:7777/'",
        ..PROXY
    },
    Attack {
        id: "net-deny-outweighs-allow",
        grants: &[],
        config: "[profiles.workspace.egress]\nallow = ['*:80']\ndeny = ['denied.test']\n",
        agreed: &["allowed.test:80"],
        text: both_ways!("http://denied.test/"),
        ..PROXY
    },
    Attack {
        id: "net-total-bytes",
        grants: &[],
        config: "[profiles.workspace.egress]\nallow = ['allowed.test:80']\nlimits.total = '1MiB'\n",
        works: None,
        text: "head -c 20M /dev/zero > big; curl -s -m 20 -T big http://allowed.test/up; curl -s -m 20 --noproxy '*' -T big http://allowed.test/up",
        check_result: |seen| {
            let large = seen.sight.requests().filter(|request| request["bytes"].as_u64() > Some(2 << 20));
            large.map(|request| format!("sent: {request}")).collect()
        },
        ..PROXY
    },
    Attack {
        id: "net-udp",
        text: "/usr/bin/python3 $SHARED/probe.py udp 93.184.2.2/443 93.184.2.2/53 11.0.0.1/7777 127.0.0.1/7777 ::1/7777 2a00:11::1/7777",
        least: 8,
        ..WORKSPACE
    },
    Attack { id: "net-fast-open", text: "/usr/bin/python3 $SHARED/probe.py fast-open 93.184.2.2 80", ..WORKSPACE },
    Attack {
        id: "net-other-protocols",
        text: "/usr/bin/python3 $SHARED/probe.py other-protocols 93.184.2.2 80",
        ..WORKSPACE
    },
    Attack {
        id: "net-socket-handed-over",
        text: "/usr/bin/python3 $SHARED/probe.py handed-over 93.184.2.2 80",
        ..WORKSPACE
    },
    Attack {
        id: "net-mapped-address",
        text: "for to in '93.184.2.2 80' '127.0.0.1 7777' '11.0.0.1 7777' '169.254.169.254 80'; do
/usr/bin/python3 $SHARED/probe.py mapped $to; done",
        ..WORKSPACE
    },
    Attack {
        id: "net-address-swapped-while-it-is-read",
        grants: &["connect 93.184.2.1:80"],
        agreed: &["allowed.test:80"],
        works: None,
        with_proxies: false,
        text: "$SHARED/race 93.184.2.1 93.184.2.2 80",
        ..PROXY
    },
    Attack { id: "net-unix", text: "/usr/bin/python3 $SHARED/probe.py unix $USOCK", ..WORKSPACE },
    Attack { id: "net-abstract", text: "/usr/bin/python3 $SHARED/probe.py unix @ABSNAME", ..WORKSPACE },
    Attack {
        id: "net-netlink",
        text: "/usr/bin/python3 $SHARED/probe.py netlink",
        check_result: |seen| refuse_line(seen, "MADE"),
        control: SameAsRoot,
        ..WORKSPACE
    },
    Attack {
        id: "net-socks-binds-nothing",
        text: "/usr/bin/python3 $SHARED/probe.py socks-other",
        check_result: |seen| refuse_line(seen, "MADE"),
        ..PROXY
    },
];

/// What a server saw of an agreed host is on record too.
fn find_proxy_bypass(seen: &crate::lab::Seen) -> Vec<String> {
    let unseen = seen.outcome.is_some() && seen.use_of("allowed.test:80").is_none();
    if unseen { vec!["it was reached past the door".to_owned()] } else { Vec::new() }
}
