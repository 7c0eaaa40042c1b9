# The way in from outside. Google's load balancer ends TLS and leads to a port of the nodes that are
# always there, behind which are the routers.

locals {
  # By the port that clients use; what is spoken to the routers.
  listeners = var.domain == null ? {} : {
    443  = { port = var.node_ports.http, protocol = var.domain.router_tls ? "HTTPS" : "HTTP" }
    9443 = { port = var.node_ports.grpc, protocol = var.domain.router_tls ? "HTTP2" : "H2C" }
  }
  doors = var.domain == null ? 0 : 1
  # GKE makes a group of machines in each zone, and tells its address only when it is there.
  groups = slice(google_container_node_pool.this["system"].managed_instance_group_urls, 0, length(var.zones))
  named = {
    for pair in setproduct(keys(local.listeners), range(length(var.zones))) : join("-", pair) => {
      listener = pair[0]
      index    = tonumber(pair[1])
    }
  }
}

resource "google_compute_global_address" "door" {
  count = local.doors

  project    = var.project
  name       = "${var.name}-door"
  labels     = local.labels
  depends_on = [google_project_service.this]
}

resource "google_dns_record_set" "door" {
  count = local.doors

  project      = var.project
  managed_zone = var.domain.zone
  name         = "${var.domain.name}."
  type         = "A"
  ttl          = 300
  rrdatas      = [google_compute_global_address.door[0].address]
}

resource "google_compute_managed_ssl_certificate" "door" {
  count = local.doors

  project = var.project
  name    = "${var.name}-door"

  managed {
    domains = [var.domain.name]
  }

  depends_on = [google_project_service.this]
}

resource "google_compute_ssl_policy" "door" {
  count = local.doors

  project         = var.project
  name            = "${var.name}-door"
  profile         = "MODERN"
  min_tls_version = "TLS_1_2"
  depends_on      = [google_project_service.this]
}

resource "google_compute_security_policy" "door" {
  # checkov:skip=CKV_GCP_73:there is no Java behind it
  count = local.doors

  project    = var.project
  name       = "${var.name}-door"
  depends_on = [google_project_service.this]

  rule {
    action      = "allow"
    priority    = 1000
    description = "Clients"

    match {
      versioned_expr = "SRC_IPS_V1"

      config {
        src_ip_ranges = var.domain.client_cidrs
      }
    }
  }

  rule {
    action      = "deny(403)"
    priority    = 2147483647
    description = "Everybody else"

    match {
      versioned_expr = "SRC_IPS_V1"

      config {
        src_ip_ranges = ["*"]
      }
    }
  }
}

# From the load balancer and its probes, which have these addresses everywhere.
resource "google_compute_firewall" "door" {
  count = local.doors

  project                 = var.project
  name                    = "${var.name}-door"
  network                 = google_compute_network.this.id
  direction               = "INGRESS"
  source_ranges           = ["35.191.0.0/16", "130.211.0.0/22"]
  target_service_accounts = [google_service_account.nodes.email]

  allow {
    protocol = "tcp"
    ports    = [for listener in local.listeners : tostring(listener.port)]
  }
}

# Both ports belong to one router, which says by HTTP how it is.
resource "google_compute_health_check" "door" {
  count = local.doors

  project             = var.project
  name                = "${var.name}-door"
  check_interval_sec  = 10
  timeout_sec         = 5
  healthy_threshold   = 2
  unhealthy_threshold = 2
  depends_on          = [google_project_service.this]

  dynamic "http_health_check" {
    for_each = var.domain.router_tls ? [] : [1]

    content {
      port         = var.node_ports.http
      request_path = "/health"
    }
  }

  dynamic "https_health_check" {
    for_each = var.domain.router_tls ? [1] : []

    content {
      port         = var.node_ports.http
      request_path = "/health"
    }
  }
}

resource "google_compute_instance_group_named_port" "door" {
  for_each = local.named

  project = var.project
  zone    = regex("/zones/([^/]+)/", local.groups[each.value.index])[0]
  group   = local.groups[each.value.index]
  name    = "door-${each.value.listener}"
  port    = local.listeners[each.value.listener].port
}

resource "google_compute_backend_service" "door" {
  for_each = local.listeners

  project                         = var.project
  name                            = "${var.name}-door-${each.key}"
  load_balancing_scheme           = "EXTERNAL_MANAGED"
  protocol                        = each.value.protocol
  port_name                       = "door-${each.key}"
  timeout_sec                     = 3600 # of a whole answer, streamed
  connection_draining_timeout_sec = 300
  health_checks                   = [google_compute_health_check.door[0].id]
  security_policy                 = google_compute_security_policy.door[0].id

  dynamic "backend" {
    for_each = local.groups

    content {
      group           = backend.value
      balancing_mode  = "UTILIZATION"
      capacity_scaler = 1.0
    }
  }

  log_config {
    enable      = true
    sample_rate = 1.0
  }
}

resource "google_compute_url_map" "door" {
  for_each = local.listeners

  project         = var.project
  name            = "${var.name}-door-${each.key}"
  default_service = google_compute_backend_service.door[each.key].id
}

resource "google_compute_target_https_proxy" "door" {
  for_each = local.listeners

  project          = var.project
  name             = "${var.name}-door-${each.key}"
  url_map          = google_compute_url_map.door[each.key].id
  ssl_certificates = [google_compute_managed_ssl_certificate.door[0].id]
  ssl_policy       = google_compute_ssl_policy.door[0].id
}

resource "google_compute_global_forwarding_rule" "door" {
  for_each = local.listeners

  project               = var.project
  name                  = "${var.name}-door-${each.key}"
  load_balancing_scheme = "EXTERNAL_MANAGED"
  ip_address            = google_compute_global_address.door[0].id
  port_range            = each.key
  target                = google_compute_target_https_proxy.door[each.key].id
  labels                = local.labels
}
