//! The command over an encrypted connection: with certificate files from the environment,
//! with the system's authorities, and with a server that neither trusts.

use lockkeeper_testkit::authority::Authority;
use lockkeeper_testkit::built;
use lockkeeper_testkit::redis_tls::TlsServer;

use crate::pipe::Command;

fn queue(server: &TlsServer, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(built::lockkeeper());
    command.args(["queue"]).args(arguments);
    command.env("REDIS_URL", format!("rediss://localhost:{}/0", server.port));
    command.envs(variables.iter().copied());
    command
}

#[tokio::test]
async fn certificates_and_the_authority_come_from_the_files_of_the_environment() {
    let server = TlsServer::start("DNS:localhost", true).await;
    let file = |name| server.authority.file(name);
    let (authority, certificate, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
    let files = [
        ("REDIS_TLS_CA_FILE", authority.as_str()),
        ("REDIS_TLS_CERT_FILE", &certificate),
        ("REDIS_TLS_KEY_FILE", &key),
    ];
    for arguments in [&["create", "frames"][..], &["length", "frames"], &["delete", "frames"]] {
        let output = queue(&server, arguments, &files).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    // Without a client certificate.
    let output = queue(&server, &["length", "frames"], &files[..1]).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(69) && said.contains("check ca.crt, tls.crt and tls.key"),
        "{output:?}"
    );
    let output = queue(&server, &["length", "frames"], &files[..2]).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(64) && said.contains("REDIS_TLS_KEY_FILE"), "{output:?}");
}

#[tokio::test]
async fn without_files_the_machine_s_authorities_are_trusted_and_no_others() {
    let server = TlsServer::start("DNS:localhost", false).await;
    let machine = server.authority.file("ca.crt");
    let trusting = [("SSL_CERT_FILE", machine.as_str())];
    let output = queue(&server, &["create", "frames"], &trusting).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let stranger = Authority::new();
    let other = stranger.file("ca.crt");
    for variables in [&[("SSL_CERT_FILE", other.as_str())][..], &[]] {
        let output = queue(&server, &["length", "frames"], variables).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(69) && said.contains("UnknownIssuer"), "{output:?}");
    }
}
