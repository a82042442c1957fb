//! The operator as a process, against a real API server, RabbitMQ and Redis. One file per
//! subject. The names of the tests describe the expected behavior.

mod around;
mod deletion;
mod doctor;
mod drift;
mod encrypted;
mod exec;
mod guard;
mod holders;
mod hostile;
mod idle;
mod kinds;
mod leader;
mod lifecycle;
mod management;
mod metrics;
mod names;
mod namespaces;
mod outages;
mod owners;
mod pipe;
mod protocols;
mod queues;
mod references;
mod restarts;
mod revoking;
pub(crate) mod rights;
mod risks;
mod secrecy;
mod settings;
mod size;
mod slots;
mod tenancy;
mod ties;
mod traces;
mod waiting_clients;
